"""OpenAI-compatible HTTP for Stepwell: `stepwell serve`, `stepwell bench serve`, and `stepwell server load`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from stepwell import hookimpl


@hookimpl
def stepwell_commands() -> Iterable[click.Command]:
    """`serve` at the root, `load` under `stepwell server`."""
    from stepwell_server.commands import load, serve

    return [serve, load]


@hookimpl
def stepwell_benches() -> Iterable[click.Command]:
    """`serve`."""
    from stepwell_server.bench.command import serve

    return [serve]


@hookimpl
def stepwell_sections() -> Mapping[str, type]:
    """`[server]`."""
    from stepwell_server.settings import ServerSettings

    return {"server": ServerSettings}
