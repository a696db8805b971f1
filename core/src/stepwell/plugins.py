"""Finding, loading and judging plugins: one that fails is a record, never an exception.

`load` has no memory: each call looks anew, so a passing error does not outlast the call that met it. Provenance is
taken here, once; serving never asks pluggy anything.
"""

from __future__ import annotations

import importlib.metadata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import pluggy

from stepwell.discover import Discovery, Found, discover, refusal
from stepwell.errors import PluginError
from stepwell.records import CONFLICT, DISABLED, FAILED, MISSING, OK, Record
from stepwell.register import KINDS, AnyOffer, Refused, admit, contained, new_manager, refuse
from stepwell.registry import Key, Plan, Plugin, Registry

__all__ = ["KINDS", "Plan", "Record", "Registry", "load"]


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
    admitted: list[Plugin] = []
    for entry, record in _sift(discovery, disable, only):
        if record is None:
            try:
                offers = admit(manager, entry)
                admitted.append(Plugin(entry, manager.get_plugin(entry.name), offers))
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


def _settle(manager: pluggy.PluginManager, admitted: list[Plugin]) -> list[Record]:
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
