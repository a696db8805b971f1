"""Commands that plugins offer, and what may be said of plugins without importing them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import click

from stepwell.cli.options import read_config
from stepwell.discover import discover
from stepwell.errors import ConfigError
from stepwell.records import FAILED, Record
from stepwell.registry import Registry
from stepwell.suggest import meant

OWN = "stepwell-"
"""Distributions so named may offer commands at the root; others find theirs under the plugin's name."""

Offered = list[tuple[Record, click.Command]]


def summaries() -> list[tuple[str, str]]:
    """Installed plugins, switched off ones left out, with the summary of their distribution."""
    off = read_config(None).disabled
    found = [entry for entry in discover().found if not entry.core and not {entry.name, entry.distribution} & off]
    return [(entry.name, entry.summary) for entry in found]


def find(name: str, core: tuple[str, ...]) -> click.Command:
    """The command or group of that name; ConfigError that says who may have meant to offer it."""
    registry = read_config(None).load_plugins()
    offered, failed = registry.commands()
    at_root = [
        (record, command)
        for record, command in offered
        if command.name == name and (record.distribution.startswith(OWN))
    ]
    group = [(record, command) for record, command in offered if record.name == name]
    if len(at_root) > 1:
        labels = " and ".join(record.label for record, _ in at_root)
        raise ConfigError(f"command {name}: {labels} both offer it; switch one off with `stepwell plugin disable`")
    if at_root:
        return at_root[0][1]
    if group:
        return _group(name, group)
    names = {*core, *(record.name for record, _ in offered), *_root_names(offered)}
    raise _unknown("command", name, names, registry, failed)


def benches() -> list[tuple[str, str]]:
    """Measurements that plugins offer, with their help."""
    offered, _ = read_config(None).load_plugins().benches()
    return sorted((command.name or "", command.get_short_help_str(90)) for _, command in offered)


def find_bench(name: str, core: tuple[str, ...]) -> click.Command:
    """The measurement of that name; ConfigError that says who may have meant to offer it."""
    registry = read_config(None).load_plugins()
    offered, failed = registry.benches()
    found = [(record, command) for record, command in offered if command.name == name]
    if not found:
        raise _unknown("measurement", name, {*core, *(command.name or "" for _, command in offered)}, registry, failed)
    if len(found) > 1:
        labels = " and ".join(record.label for record, _ in found)
        raise ConfigError(f"bench {name}: {labels} both offer it; switch one off with `stepwell plugin disable`")
    return found[0][1]


def _unknown(what: str, name: str, names: Collection[str], registry: Registry, failed: Sequence[Record]) -> ConfigError:
    suspects = [*failed, *(record for record in registry.records if record.state in FAILED)]
    blame = "".join(f"; {record.sentence}" for record in suspects)
    return ConfigError(f"no such {what} {name}{meant(name, names).removesuffix('?')}{blame}")


def clashes(offered: Offered, core: tuple[str, ...]) -> list[str]:
    """What is hidden behind a name that core, or another plugin, has at the root; a sentence each."""
    owners: dict[str, list[Record]] = defaultdict(list)
    for record, command in offered:
        if record.distribution.startswith(OWN):
            owners[command.name or ""].append(record)
    found = [
        f"command {name} of {record.label} is core's own name; use `stepwell {record.name} {name}`"
        for name, records in owners.items()
        for record in records
        if name in core
    ]
    found += [
        f"command {name} is offered by {' and '.join(record.label for record in records)}; switch one off"
        for name, records in owners.items()
        if name not in core and len(records) > 1
    ]
    groups = {record.name: record for record, _ in offered if record.name in core}
    return found + [f"commands of {record.label} are hidden: {name} is core's own" for name, record in groups.items()]


def _root_names(offered: Offered) -> list[str]:
    return [command.name or "" for record, command in offered if record.distribution.startswith(OWN)]


def _group(name: str, offered: Offered) -> click.Group:
    commands: dict[str, click.Command] = {}
    times: dict[str, int] = defaultdict(int)
    for record, command in offered:
        inner = command.name or record.name
        times[inner] += 1
        if times[inner] > 1:
            raise ConfigError(f"command {name} {inner}: {record.label} offers it twice")
        commands[inner] = command
    return click.Group(name, commands=commands, help=f"Commands of {offered[0][0].label}.")
