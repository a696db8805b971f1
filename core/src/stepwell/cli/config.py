"""`stepwell config show`: every setting, its value, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from stepwell.cli.options import read_config, set_option
from stepwell.config import Shown
from stepwell.errors import ConfigError
from stepwell.resolve import resolve


@click.group()
def config() -> None:
    """Show settings and where each comes from."""


@config.command()
@click.argument("path", metavar="[CONFIG]", required=False)
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of lines.")
def show(path: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Print every setting of CONFIG with its value and origin; of no CONFIG, the defaults."""
    settings = read_config(path, sets)
    registry = settings.load_plugins()
    mistake: ConfigError | None = None
    try:
        resolve(settings, registry)
        settings.finish(registry)
    except ConfigError as error:
        mistake = error
    shown = settings.shown()
    click.echo(json.dumps([asdict(line) for line in shown], indent=2) if as_json else "\n".join(lines(shown)))
    for note in settings.notes:
        click.echo(f"note: {note}", err=True)
    if mistake and (path or sets):
        raise mistake
    if mistake:
        click.echo(f"note: {mistake}", err=True)


def lines(shown: Sequence[Shown]) -> list[str]:
    """Settings as a TOML file would have them, each with its origin as a comment."""
    cells = [f"{line.key} = {line.value}" for line in shown]
    width = max((len(cell) for cell in cells), default=0) + 2
    result: list[str] = []
    section = ""
    for line, cell in zip(shown, cells, strict=True):
        if line.section != section:
            result += ["", f"[{line.section}]"] if result else [f"[{line.section}]"]
            section = line.section
        result.append(f"{cell.ljust(width)}# {line.origin}")
    return result
