"""Finding, loading and judging plugins: one that fails is a record, never an exception.

`load` has no memory: each call looks anew, so a passing error does not outlast the call that met it. Provenance is
taken here, once; serving never asks pluggy anything.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pluggy

from stepwell.abc.sink import Event
from stepwell.discover import Discovery, Found, discover, refusal
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Check, Offer
from stepwell.records import BROKEN, CONFLICT, DISABLED, FAILED, INVALID, MISSING, OK, UNUSABLE, Record
from stepwell.register import KINDS, SECTION, AnyOffer, Refused, admit, contained, hook_of, new_manager, refuse

if TYPE_CHECKING:
    from stepwell.config import Config

__all__ = ["KINDS", "Plan", "Record", "Registry", "load"]

T = TypeVar("T")
Key = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """What was put together, for `stepwell_assembled` to judge."""

    registry: Registry
    config: Config
    offers: Mapping[str, Offer[Any]] = field(default_factory=dict)
    """The offer chosen for each section."""


@dataclass(slots=True)
class _Plugin:
    """A plugin that was admitted."""

    entry: Found
    module: object
    offers: dict[Key, AnyOffer]
    unusable: dict[Key, str] = field(default_factory=dict)

    @property
    def record(self) -> Record:
        """Its line: unusable only where nothing that it offers can run here."""
        names = tuple(sorted(":".join(key) for key in self.offers))
        state = UNUSABLE if self.offers and len(self.unusable) == len(self.offers) else OK
        reason = "; ".join(f"{':'.join(key)} cannot run here: {why}" for key, why in sorted(self.unusable.items()))
        return self.entry.record(state, reason, names)


def load(
    *,
    disable: Collection[str] = (),
    only: Collection[str] | None = None,
    distributions: Iterable[importlib.metadata.Distribution] | None = None,
    strict: bool = False,
) -> Registry:
    """Load every installed plugin, one at a time, core's own parts first, then by name.

    `disable` and `only` hold names of plugins or distributions; what they exclude is never imported. `strict`: the
    first plugin that fails is a PluginError.
    """
    discovery = discover(distributions)
    manager = new_manager()
    records = [*discovery.unreadable, *_absent(discovery, disable, only)]
    admitted: list[_Plugin] = []
    for entry, record in _sift(discovery, disable, only):
        if record is None:
            try:
                offers = admit(manager, entry)
                admitted.append(_Plugin(entry, manager.get_plugin(entry.name), offers))
                continue
            except Refused as why:
                record = refuse(entry, why)
        records.append(record)
    records += _settle(manager, admitted)
    for plugin in admitted:
        plugin.unusable = _unusable(plugin.offers)
    registry = Registry(manager, admitted, records)
    if strict and (bad := [record for record in registry.records if record.state in FAILED]):
        raise PluginError(bad[0].sentence)
    return registry


def _sift(
    discovery: Discovery, disable: Collection[str], only: Collection[str] | None
) -> Iterable[tuple[Found, Record | None]]:
    """Each entry point with the reason not to import it, if there is one."""
    wanted: list[Found] = []
    for entry in discovery.found:
        names = {entry.name, entry.distribution}
        if entry.core:
            wanted.append(entry)
        elif names & set(disable):
            yield entry, entry.record(DISABLED, "by name")
        elif only is not None and not names & set(only):
            yield entry, entry.record(DISABLED, "not among the plugins asked for")
        elif refused := refusal(entry, discovery):
            yield entry, refused
        else:
            wanted.append(entry)
    namesakes = defaultdict(list)
    for entry in wanted:
        namesakes[entry.name].append(entry)
    for entry in wanted:
        same = namesakes[entry.name]
        clash = len(same) > 1 and not entry.core
        yield entry, entry.record(CONFLICT, f"its name is taken by {_both(same)}") if clash else None


def _absent(discovery: Discovery, disable: Collection[str], only: Collection[str] | None) -> list[Record]:
    installed = {name for entry in discovery.found for name in (entry.name, entry.distribution)}
    asked = {**dict.fromkeys(only or (), "asked for"), **dict.fromkeys(disable, "disabled")}
    return [Record(n, "", "", MISSING, f"{why}, but not installed") for n, why in asked.items() if n not in installed]


def _settle(manager: pluggy.PluginManager, admitted: list[_Plugin]) -> list[Record]:
    """Turn out every plugin that offers a name that core or another plugin offers.

    Both of two plugins go: which one came first is an accident of their names.
    """
    owners: dict[Key, list[Found]] = defaultdict(list)
    for plugin in admitted:
        for key in plugin.offers:
            owners[key].append(plugin.entry)
    records = []
    for plugin in [plugin for plugin in admitted if not plugin.entry.core]:
        clashes = [key for key in sorted(plugin.offers) if len(owners[key]) > 1]
        if clashes:
            admitted.remove(plugin)
            manager.unregister(plugin.module)
            reason = "; ".join(f"{':'.join(key)} is offered by {_both(owners[key])}" for key in clashes)
            records.append(plugin.entry.record(CONFLICT, reason, plugin.record.offers))
    return records


def _both(entries: Sequence[Found]) -> str:
    labels = [entry.record(OK).label for entry in entries]
    return f"both {' and '.join(labels)}" if len(labels) == 2 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _unusable(offers: Mapping[Key, AnyOffer]) -> dict[Key, str]:
    found = {}
    for key, offer in offers.items():
        try:
            why = offer.missing() if offer.missing else None
        except BaseException as error:
            why = contained(error)
        if why:
            found[key] = why
    return found


class Registry:
    """The plugins of this process: what they are, what they offer, and their life hooks."""

    def __init__(self, manager: pluggy.PluginManager, plugins: Sequence[_Plugin], others: Sequence[Record]) -> None:
        self.manager = manager
        self.failures: Counter[str] = Counter()
        """Life hooks that raised, by plugin."""
        self._plugins = {plugin.entry.name: plugin for plugin in plugins}
        self._records = {plugin.entry.name: plugin.record for plugin in plugins}
        self._others = list(others)
        self._offers = {key: (plugin, offer) for plugin in plugins for key, offer in plugin.offers.items()}
        # Bound once: `events` is called while serving.
        self._events = self._callers("stepwell_events")
        self._stopping = self._callers("stepwell_stopping")
        self._log = logging.getLogger("stepwell.plugins")

    # --- what there is ---

    @property
    def records(self) -> tuple[Record, ...]:
        """Every plugin that was found or named, by name."""
        return tuple(sorted([*self._records.values(), *self._others], key=lambda r: (r.name, r.distribution)))

    def record(self, name: str) -> Record | None:
        """The record of a plugin."""
        return next((record for record in self.records if record.name == name), None)

    def offers(self, kind: str) -> dict[str, Offer[Any]]:
        """Offers of a kind by name, sorted, those that cannot run here included."""
        self._known(kind)
        return {name: self._offers[k, name][1] for k, name in sorted(self._offers) if k == kind}

    @property
    def sections(self) -> dict[str, type]:
        """Sections that plugins bind themselves."""
        return {name: offer.config for (kind, name), (_, offer) in self._offers.items() if kind == SECTION}

    def offer(self, kind: str, name: str) -> Offer[Any]:
        """The offer of that name; ConfigError where there is none or it cannot run here."""
        why = self.why_not(kind, name)
        if why is not None:
            raise ConfigError(f"{kind} {name!r}: {why}")
        return self._offers[kind, name][1]

    def owner(self, offer: Offer[Any]) -> Record:
        """The plugin that an offer came from."""
        return next(plugin.record for plugin, one in self._offers.values() if one is offer)

    def why_not(self, kind: str, name: str) -> str | None:
        """Why an offer cannot be had, and which plugin may be to blame; None where it can."""
        self._known(kind)
        if (kind, name) in self._offers:
            plugin = self._offers[kind, name][0]
            return plugin.unusable.get((kind, name))
        suspects = [record for record in self.records if not record.loaded and record.state != MISSING]
        for record in suspects:
            if record.name == name or f"{kind}:{name}" in record.offers:
                return record.sentence
        have = ", ".join(self.offers(kind)) or "none"
        blame = [f"; it may be what {record.sentence}" for record in suspects if record.state in FAILED]
        return f"nothing installed offers it; have {have}" + "".join(blame)

    def warnings(self) -> list[str]:
        """One sentence for each plugin that failed, for the start of a process whose config does not need it."""
        return [record.sentence for record in self.records if record.state in FAILED]

    def digest(self) -> str:
        """Of the names and versions of all that is loaded; equal in processes that may talk to each other."""
        lines = [f"{r.name} {r.distribution} {r.version}" for r in self.records if r.loaded]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _known(self, kind: str) -> None:
        if kind not in KINDS:
            raise KeyError(f"{kind} is no kind of offer")

    # --- hooks that are called on request ---

    def commands(self) -> tuple[list[tuple[Record, click.Command]], list[Record]]:
        """Commands of plugins, and a record of each plugin that failed to give them."""
        return self._collect("stepwell_commands", click.Command)

    def checks(self) -> tuple[list[tuple[Record, Check]], list[Record]]:
        """Checks of plugins, and a record of each plugin that failed to give them."""
        return self._collect("stepwell_checks", Check)

    def _collect(self, hook: str, wanted: type[T]) -> tuple[list[tuple[Record, T]], list[Record]]:
        found: list[tuple[Record, T]] = []
        failed: list[Record] = []
        for record, caller in self._callers(hook):
            try:
                things = [thing for answer in caller() for thing in answer]
            except BaseException as error:
                why = f"{hook}: {contained(error)}"
                failed.append(replace(record, state=BROKEN, reason=why, traceback=traceback.format_exc()))
                continue
            strange = [type(thing).__name__ for thing in things if not isinstance(thing, wanted)]
            if strange:
                failed.append(replace(record, state=INVALID, reason=f"{hook} gave {strange[0]}"))
                continue
            found += [(record, thing) for thing in things]
        return found, failed

    # --- life ---

    def assembled(self, plan: Plan) -> None:
        """All parts are built. A plugin that raises vetoes the start: ConfigError with its words."""
        for record, caller in self._callers("stepwell_assembled"):
            try:
                caller(plan=plan)
            except BaseException as error:
                why = str(error) if isinstance(error, ConfigError) else contained(error)
                raise ConfigError(f"plugin {record.label} refuses the start: {why}") from error

    def events(self, batch: Sequence[Event]) -> None:
        """Hand events to every plugin that wants them; one that raises is counted."""
        for record, caller in self._events:
            self._contain(record, "stepwell_events", lambda: caller(batch=batch))  # noqa: B023 - called at once

    def stopping(self, why: str) -> None:
        """Tell every plugin that the engine stops; one that raises is counted."""
        for record, caller in self._stopping:
            self._contain(record, "stepwell_stopping", lambda: caller(why=why))  # noqa: B023 - called at once

    def _contain(self, record: Record, hook: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self.failures[record.name] += 1
            if self.failures[record.name] == 1:
                text = "plugin %s: %s: %s; further failures of it are only counted"
                self._log.warning(text, record.label, hook, contained(error), exc_info=error)

    def _callers(self, hook: str) -> list[tuple[Record, pluggy.HookCaller]]:
        callers = []
        for name, plugin in sorted(self._plugins.items()):
            caller = hook_of(self.manager, plugin.module, hook)
            if caller is not None:
                callers.append((self._records[name], caller))
        return callers
