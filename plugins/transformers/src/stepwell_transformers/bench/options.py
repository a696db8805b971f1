"""The options that these commands share, and what they come to."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepwell import ConfigError
from stepwell.cli.options import read_config, set_option
from stepwell_transformers.config import TransformersConfig

if TYPE_CHECKING:
    from stepwell_transformers.bench.rig import Place

F = TypeVar("F", bound=Callable[..., Any])
LARGE, TINY = "random/llama-3.1-8b", "random/tiny"
LARGE_EXPERTS, TINY_EXPERTS = "random/qwen3-30b-a3b", "random/tiny-experts"
DIGITS = 12
"""Of a number, at most: beyond, nothing is measured any more, and Python refuses to read it in the end."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured where."""

    settings: TransformersConfig
    page_size: int
    rounds: int
    sets: Sequence[str]

    @property
    def small(self) -> bool:
        """Whether this only tries a command out, on a CPU."""
        return self.settings.device == "cpu"

    def place(self) -> Place:
        """A context for a runner."""
        from stepwell_transformers.bench.rig import Place

        return Place(read_config(None, self.sets).cache_dir, logging.getLogger("stepwell.bench"))

    def changed(self, **settings: object) -> Setup:
        """With other settings of the runner."""
        return replace(self, settings=replace(self.settings, **settings))  # type: ignore[arg-type]


def bench_options(command: F) -> F:
    """Add `--model`, `--device`, `--page`, `--rounds`, `--set` and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--rounds", type=click.IntRange(1), default=None, help="Turns that all measurements take."),
        click.option(
            "--page", "page_size", type=click.IntRange(1), default=16, show_default=True, help="Tokens a page."
        ),
        click.option(
            "--device", default="cuda", show_default=True, help="cuda, cuda:N, or cpu to try the command out."
        ),
        click.option("--model", default=None, help=f"As in runner.model; unset: {LARGE}, on cpu {TINY}."),
    ):
        command = option(command)
    return set_option(command)


def setup(model: str | None, device: str, page_size: int, rounds: int | None, sets: Sequence[str]) -> Setup:
    """ConfigError where there is no such device."""
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(
            "this measures a CUDA device, and torch finds none here; --device cpu tries it at small sizes"
        )
    small = device == "cpu"
    extra: dict[str, object] = {"runner.model": model or (TINY if small else LARGE), "runner.device": device}
    settings = read_config(None, sets, extra).bind("runner", TransformersConfig)
    return Setup(settings, page_size, rounds or (1 if small else 5), sets)


class Tokens(click.ParamType):
    """A number of tokens: 512, 2k, 8,192."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(rf"(\d[\d,]{{0,{DIGITS}}})(k?)", str(value).strip().lower())
        if not found or not (count := int(found[1].replace(",", "")) * (1024 if found[2] else 1)):
            self.fail(f"{value!r} is no number of tokens, as 512 or 8k are", param, ctx)
        return count


class Limit(Tokens):
    """A number of tokens, or `off`, which is 0."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value in ("off", 0) else super().convert(value, param, ctx)


class Point(click.ParamType):
    """Rows and the tokens before each: 8x2k."""

    name = "batch x context"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        batch, _, context = str(value).partition("x")
        if not batch.isdecimal() or len(batch) > DIGITS or not int(batch):
            self.fail(f"{value!r} is no point, as 8x2k is", param, ctx)
        return int(batch), Tokens().convert(context, param, ctx)


class Several(click.ParamType):
    """Names, with commas between them."""

    name = "names"

    def __init__(self, *known: str) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(","))
        for name in names:
            if name not in self._known:
                self.fail(f"{name!r} is none of {', '.join(self._known)}", param, ctx)
        return names
