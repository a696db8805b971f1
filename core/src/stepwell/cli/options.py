"""The options by which every command that needs a config takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from stepwell.config import Config, environment

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number within limits; `nan` is beyond none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number to count with.", param, ctx)
        return number


def config_options(command: F) -> F:
    """Add `--config PATH` (argument `path`) and `--set SECTION.KEY=VALUE` (argument `sets`)."""
    command = click.option(
        "--config", "-c", "path", metavar="PATH", help="A TOML file with settings; see `stepwell config show`."
    )(command)
    return set_option(command)


def set_option(command: F) -> F:
    """Add `--set SECTION.KEY=VALUE` (argument `sets`)."""
    return click.option(
        "--set", "sets", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated."
    )(command)


def read_config(path: str | None, sets: Sequence[str] = (), extra: Mapping[str, object] | None = None) -> Config:
    """The config that those options ask for, over this process's environment."""
    return Config.load(None if path is None else Path(path), environment(), sets, extra)
