"""`stepwell plugin disable` and `enable`: a small file of the user's; no plugin is imported."""

from __future__ import annotations

from pathlib import Path

import click

from stepwell.config import environment
from stepwell.discover import discover
from stepwell.errors import ConfigError
from stepwell.suggest import meant
from stepwell.switches import disabled_by_file, disabled_file


@click.group()
def plugin() -> None:
    """Switch plugins off and on."""


@plugin.command()
@click.argument("name")
def disable(name: str) -> None:
    """Switch a plugin off, by its name or its distribution's: it is not imported any more."""
    known = {each for entry in discover().found if not entry.core for each in (entry.name, entry.distribution)}
    if name not in known:
        raise ConfigError(f"{name}: no such plugin is installed{meant(name, known)}")
    off = disabled_by_file(environment())
    path = _write(off | {name})
    click.echo(f"{name} is switched off (in {path}); its sections in a config are kept and ignored")


@plugin.command()
@click.argument("name")
def enable(name: str) -> None:
    """Switch a plugin on again."""
    off = disabled_by_file(environment())
    if name not in off:
        raise ConfigError(f"{name}: is not switched off by `stepwell plugin disable`{meant(name, off)}")
    path = _write(off - {name})
    click.echo(f"{name} is switched on again (in {path})")


def _write(names: frozenset[str]) -> Path:
    path = disabled_file(environment())
    if path is None:
        raise ConfigError("neither $XDG_CONFIG_HOME nor $HOME says where to write; use $STEPWELL_DISABLE instead")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    return path
