"""`stepwell bench transfer`: copies of scattered pages against one large copy and against a loop of cudaMemcpyAsync.

All take turns within one run, timed by the device's own clock, and medians are reported; each is checked before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from stepwell import ConfigError
from stepwell.cli.options import read_config, set_option

if TYPE_CHECKING:
    import torch

    from stepwell_transformers.bench.memcpy_loop import MemcpyLoop
    from stepwell_transformers.bench.transfer_scene import Arena

Copy = Callable[[], None]

METHODS = ("auto", "cuda", "triton", "engine", "torch")
SIDE = 8192
"""Of the matrices that are multiplied beside copies."""
PRODUCTS = 16
BESIDE = 3
"""Copies that run while products do, so that one always does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure."""

    pages: Sequence[int]
    methods: Sequence[str]
    layers: int
    tokens: int
    token_bytes: int
    rounds: int
    blocks: int | None
    cache: Path


@dataclass(slots=True)
class Turns:
    """Copies that take turns: what each moves, and how long its turns took."""

    nbytes: dict[tuple[str, str], int] = field(default_factory=dict)
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    times: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, direction: str, copy: Copy, nbytes: int) -> None:
        """One more."""
        self.copies[name, direction], self.nbytes[name, direction] = copy, nbytes

    def run(self, rounds: int) -> None:
        """All in turn; a round before is not counted."""
        for turn in range(rounds + 1):
            for key, copy in self.copies.items():
                took = seconds(copy)
                if turn:
                    self.times[key].append(took)

    def rate(self, name: str, direction: str) -> float | None:
        """GB/s."""
        key = name, direction
        return self.nbytes[key] / median(self.times[key]) / 1e9 if key in self.times else None


def _numbers(context: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is no list of sizes, as 1,16,64 is")
    return tuple(int(part) for part in parts)


def _methods(context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in METHODS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(METHODS)}")
    return names


@click.command()
@set_option
@click.option("--pages", default="1,16,64", show_default=True, callback=_numbers, help="Tokens a page.")
@click.option("--methods", default="auto,triton,engine", show_default=True, callback=_methods, help="Which to compare.")
@click.option("--layers", type=click.IntRange(1), default=32, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=8192, show_default=True, help="Tokens of one copy.")
@click.option(
    "--token-bytes", type=click.IntRange(1), default=2048, show_default=True, help="Of K, and of V, a token and layer."
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Turns that all copies take.")
@click.option("--blocks", type=click.IntRange(1), default=None, help="Thread blocks of kernels; unset: by their rule.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def transfer(
    sets: Sequence[str],
    pages: Sequence[int],
    methods: Sequence[str],
    layers: int,
    tokens: int,
    token_bytes: int,
    rounds: int,
    blocks: int | None,
    as_json: bool,
) -> None:
    """Time copies of scattered pages between device and host memory, and what they take from a matrix product.

    Beside them stand one large copy of as many bytes, which is the link's limit, and a loop of cudaMemcpyAsync in C
    with a call for each page, layer and K or V.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("bench transfer measures the link to a CUDA device, and torch finds none here")
    for page in pages:
        if tokens % page:
            raise ConfigError(f"--tokens {tokens} is no whole number of pages of {page}; choose a multiple")
    cache = Path(read_config(None, sets).cache_dir) / "cubins"
    run(Asked(pages, methods, layers, tokens, token_bytes, rounds, blocks, cache), as_json)


def run(asked: Asked, as_json: bool) -> None:
    """Measure and print."""
    import torch

    from stepwell_transformers.bench.report import about, show
    from stepwell_transformers.bench.transfer_scene import Arena

    device = torch.device("cuda", torch.cuda.current_device())
    nbytes = asked.layers * 2 * asked.tokens * asked.token_bytes
    arena = Arena(2 * nbytes, device)
    try:
        link = _link(arena, nbytes, device, asked.rounds)
        loop, notes = _loop()
        rows: list[dict[str, object]] = []
        interference: list[dict[str, object]] = []
        for page in asked.pages:
            rows += _page(page, asked, arena, loop, link, device, notes)
        page = 16 if 16 in asked.pages else asked.pages[-1]
        interference = list(_interference(page, asked, arena, device))
    finally:
        torch.cuda.synchronize()
        arena.close()
    result = {"link_gb_s": link, "rows": rows, "interference": interference, "notes": notes, **about(device)}
    show(result, COLUMNS, rows, as_json)
    if not as_json:
        show({}, BESIDE_COLUMNS, interference, as_json)
        for note in notes:
            click.echo(note)


COLUMNS = {
    "page": "page",
    "direction": "direction",
    "method": "method",
    "blocks": "blocks",
    "gb_s": "GB/s",
    "share_of_link": "of one large copy",
    "memcpy_loop_gb_s": "cudaMemcpyAsync loop",
    "times_memcpy_loop": "times the loop",
    "enqueue_ms": "CPU ms",
}
BESIDE_COLUMNS = {
    "page": "page",
    "direction": "direction",
    "method": "method",
    "blocks": "blocks",
    "product_ms": "product alone, ms",
    "beside_ms": "beside copies, ms",
    "slowdown_percent": "slower by %",
    "copy_gb_s": "GB/s meanwhile",
}
