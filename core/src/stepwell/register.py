"""Importing one plugin and judging what it registers.

pluggy alone is not strict enough: it passes arguments with defaults or not depending on its release, ignores a
misspelt hook, and may leave a plugin half registered. So everything is checked before pluggy sees it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TypeVar, get_args, get_origin, get_type_hints

import pluggy

from stepwell import hookspecs
from stepwell.discover import Found
from stepwell.markers import PROJECT
from stepwell.offers import Offer
from stepwell.records import BROKEN, CONFLICT, INVALID, Record
from stepwell.settings import CORE_SECTIONS, INSIDE, ROLES
from stepwell.suggest import meant

T = TypeVar("T")

KINDS = {
    "storage": "stepwell_storages",
    "evict": "stepwell_evictors",
    "write": "stepwell_writers",
    "prefetch": "stepwell_prefetchers",
    "retain": "stepwell_retainers",
    "schedule": "stepwell_schedulers",
    "route": "stepwell_routers",
    "runner": "stepwell_runners",
    "codec": "stepwell_codecs",
    "attention": "stepwell_attentions",
    "dispatch": "stepwell_dispatchers",
    "balance": "stepwell_balancers",
    "sink": "stepwell_sinks",
}
"""Kinds of offers, and the hook that gives them."""
SECTION = "section"
"""The kind under which a section is kept that a plugin binds itself: its name is as much taken as an offer's."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")

AnyOffer = Offer[object]


class Refused(Exception):
    """A plugin that is not taken: the state, the reason and the traceback of its record."""

    def __init__(self, state: str, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.trace = trace


def new_manager() -> pluggy.PluginManager:
    """A manager that knows every hook and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def admit(manager: pluggy.PluginManager, entry: Found) -> dict[tuple[str, str], AnyOffer]:
    """Import a plugin, register it and take its offers; Refused, with nothing left behind, where it breaks a rule."""
    module = _guard(lambda: importlib.import_module(entry.module), f"import {entry.module}")
    if manager.is_registered(module):
        raise Refused(CONFLICT, f"{entry.module} is plugin {manager.get_name(module)} already")
    try:
        check_hooks(manager, module)
        _guard(lambda: manager.register(module, entry.name), "registration")
        return dict(_offers(manager, module))
    except Refused:
        # pluggy 1.6 keeps half of a plugin that fails its validation.
        if manager.is_registered(module):
            manager.unregister(module)
        raise


def refuse(entry: Found, why: Refused) -> Record:
    """The record of a plugin that was not taken."""
    return entry.record(why.state, why.reason, traceback=why.trace)


def hook_of(manager: pluggy.PluginManager, plugin: object, hook: str) -> pluggy.HookCaller | None:
    """A caller of one hook of one plugin; None where it does not implement it."""
    if hook not in {caller.name for caller in manager.get_hookcallers(plugin) or ()}:
        return None
    return manager.subset_hook_caller(hook, [other for other in manager.get_plugins() if other is not plugin])


def contained(error: BaseException) -> str:
    """A plugin's failure as one line; what the user does at the keyboard is none and goes on."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def kind_of(role: object, other: str) -> str:
    """The kind of the offers that make a `role`, as the hooks say; `other` where none does."""
    for kind, hook in KINDS.items():
        (offer,) = get_args(get_type_hints(getattr(hookspecs, hook))["return"])
        (made,) = get_args(offer)
        if (get_origin(made) or made) is (get_origin(role) or role):
            return kind
    return other


def check_hooks(manager: pluggy.PluginManager, module: object) -> None:
    """Refuse what pluggy would pass over in silence or treat differently from release to release."""
    if not isinstance(module, ModuleType):
        raise Refused(INVALID, "its entry point must name a module")
    known = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{PROJECT}_spec")]
    count = 0
    for name, function in list(vars(module).items()):
        if not inspect.isroutine(function):
            continue
        options = manager.parse_hookimpl_opts(module, name)
        if options is None:
            if name in known:
                raise Refused(INVALID, f"{name} lacks the @hookimpl decorator")
            continue
        count += 1
        _check_hook(options.get("specname") or name, function, dict(options), known)
    if not count:
        raise Refused(INVALID, f"{module.__name__} implements no hook")


def _check_hook(name: str, function: Callable[..., object], options: dict[str, object], known: list[str]) -> None:
    if name not in known:
        if options.get("optionalhook"):
            return
        raise Refused(INVALID, f"{name} is no hook of stepwell" + meant(name, known))
    if options.get("wrapper") or options.get("hookwrapper"):
        raise Refused(INVALID, f"{name} is a wrapper; hooks of stepwell are not wrapped")
    allowed = list(inspect.signature(getattr(hookspecs, name)).parameters)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            raise Refused(INVALID, f"{name} gives its argument {parameter.name} a default; hooks take none")
        if parameter.name not in allowed:
            has = "takes " + ", ".join(allowed) if allowed else "takes none"
            raise Refused(INVALID, f"{name} has an argument {parameter.name}; the hook {has}")


def _offers(manager: pluggy.PluginManager, module: ModuleType) -> Iterator[tuple[tuple[str, str], AnyOffer]]:
    seen: set[tuple[str, str]] = set()
    for kind, hook in KINDS.items():
        caller = hook_of(manager, module, hook)
        if caller is None:
            continue
        for offer in _guard(partial(_listed, caller), hook):
            key = (kind, _judged(offer, hook).name)
            if key in seen:
                raise Refused(INVALID, f"{hook} offers {key[1]} twice")
            seen.add(key)
            yield key, offer
    caller = hook_of(manager, module, "stepwell_sections")
    for name, settings in (_guard(partial(_sections, caller), "stepwell_sections") if caller else {}).items():
        yield (SECTION, name), _judged(Offer(name, settings, settings), "stepwell_sections")


def _sections(caller: pluggy.HookCaller) -> dict[str, type]:
    sections = dict(caller()[0])
    for name in sections:
        if name in CORE_SECTIONS or name in ROLES or name in INSIDE:
            raise Refused(INVALID, f"stepwell_sections names {name}, a section of core's own")
    return sections


def _listed(caller: pluggy.HookCaller) -> list[AnyOffer]:
    return [offer for answer in caller() for offer in answer]


def _judged(offer: object, hook: str) -> AnyOffer:
    if not isinstance(offer, Offer):
        raise Refused(INVALID, f"{hook} gave {type(offer).__name__} instead of an Offer")
    if not isinstance(offer.name, str) or not _NAME.fullmatch(offer.name):
        raise Refused(INVALID, f"{hook}: {offer.name!r} is no name for an offer; use a-z, 0-9, _, - and .")
    if not callable(offer.make):
        raise Refused(INVALID, f"{hook}: make of {offer.name} cannot be called")
    if not (isinstance(offer.config, type) and dataclasses.is_dataclass(offer.config)):
        raise Refused(INVALID, f"{hook}: config of {offer.name} is not a dataclass")
    if not getattr(offer.config, "__dataclass_params__").frozen:  # noqa: B009 - no stub knows it
        raise Refused(INVALID, f"{hook}: config of {offer.name} is not frozen")
    return offer


def _guard(call: Callable[[], T], what: str) -> T:
    try:
        return call()
    except Refused:
        raise
    except BaseException as error:
        reason = contained(error)
        raise Refused(BROKEN, f"{what}: {reason}", traceback.format_exc()) from error
