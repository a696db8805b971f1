"""OpenAI-compatible HTTP for Stepwell: offers `stepwell serve`, and `stepwell server load` to test it under load."""

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
def stepwell_sections() -> Mapping[str, type]:
    """`[server]`."""
    from stepwell_server.settings import ServerSettings

    return {"server": ServerSettings}
