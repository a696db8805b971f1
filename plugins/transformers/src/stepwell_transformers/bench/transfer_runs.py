"""Copies of scattered pages against one large copy and against a loop of cudaMemcpyAsync.

All take turns within one run, timed by the device's own clock, and medians are reported; each is checked before.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import click
import torch

from stepwell import ConfigError
from stepwell_kernels import PageShape
from stepwell_kernels.transfer import Method, Mover, Way, make_mover
from stepwell_transformers.bench.memcpy_loop import MemcpyLoop
from stepwell_transformers.bench.report import about, progress, show
from stepwell_transformers.bench.transfer_scene import Arena, Scene

Copy = Callable[[], None]

LINK, LOOP = "one large copy", "cudaMemcpyAsync loop"
BOTH = "both"
SIDE = 8192
"""Of the matrices that are multiplied beside copies."""
BEFORE, AFTER = 40, 60
"""Products before the copies begin, and from then on: enough that some run after them."""

COLUMNS = {
    "page": "page",
    "direction": "direction",
    "method": "method",
    "by": "by",
    "blocks": "blocks",
    "gb_s": "GB/s",
    "share_of_link": "of one large copy",
    "memcpy_loop_gb_s": LOOP,
    "times_memcpy_loop": "times the loop",
    "enqueue_ms": "CPU ms",
}
BESIDE_COLUMNS = {
    "page": "page",
    "direction": "direction",
    "method": "method",
    "by": "by",
    "blocks": "blocks",
    "product_ms": "product alone, ms",
    "beside_ms": "beside copies, ms",
    "slowdown_percent": "slower by %",
    "copy_gb_s": "GB/s meanwhile",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure."""

    pages: Sequence[int]
    methods: Sequence[Method]
    layers: int
    tokens: int
    token_bytes: int
    rounds: int
    blocks: int | None
    cache: Path
    parts: int = 1
    """In which host memory keeps a page."""

    def shape(self, page: int) -> PageShape:
        """Of pages so long, without a meaning for the bytes of a token."""
        return PageShape(self.layers, page, self.parts, self.token_bytes // self.parts, torch.uint8)


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of a product alone, of one beside copies, and of a copy meanwhile."""

    alone: float
    beside: float
    copy: float


@dataclass(slots=True)
class Turns:
    """Copies that take turns: what each moves, how long its turns took, and how long the CPU was at it."""

    nbytes: dict[tuple[str, str], int] = field(default_factory=dict)
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)
    times: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    enqueued: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, direction: str, copy: Copy, nbytes: int) -> None:
        """One more."""
        self.copies[name, direction], self.nbytes[name, direction] = copy, nbytes

    def run(self, rounds: int) -> None:
        """All in turn; a round before is not counted."""
        for turn in range(rounds + 1):
            for key, copy in self.copies.items():
                took, enqueued = _time(copy)
                if turn:
                    self.times[key].append(took)
                    self.enqueued[key].append(enqueued)

    def gb_s(self, name: str, direction: str) -> float | None:
        """By the median of its turns."""
        key = name, direction
        return round(self.nbytes[key] / median(self.times[key]) / 1e9, 2) if key in self.times else None


def run(asked: Asked, as_json: bool) -> None:
    """Measure and print."""
    device = torch.device("cuda", torch.cuda.current_device())
    nbytes = asked.layers * 2 * asked.tokens * asked.token_bytes
    progress(f"pin {2 * nbytes / 2**30:.2f} GiB of random bytes")
    arena = Arena(2 * nbytes)
    try:
        link = _link(arena, nbytes, device, asked.rounds)
        loop, notes = _loop(asked.parts)
        rows = [row for page in asked.pages for row in _page(page, asked, arena, loop, link, device)]
        beside = list(_interference(16 if 16 in asked.pages else asked.pages[-1], asked, arena, device))
    finally:
        torch.cuda.synchronize()
        arena.close()
    result = {"link_gb_s": link, "rows": rows, "interference": beside, "notes": notes, **about(device)}
    show(result, COLUMNS, rows, as_json)
    if not as_json:
        show({}, BESIDE_COLUMNS, beside, as_json)
        click.echo(f"{LINK}: " + ", ".join(f"{way} {rate} GB/s" for way, rate in link.items()))
        for note in notes:
            click.echo(note)


def _link(arena: Arena, nbytes: int, device: torch.device, rounds: int) -> dict[str, float]:
    """What one large copy reaches each way, and two at once."""
    here = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in Way]
    there = [arena.octets[:nbytes], arena.octets[nbytes : 2 * nbytes]]
    turns = Turns()
    load, save = (
        lambda: here[0].copy_(there[0], non_blocking=True),
        lambda: there[1].copy_(here[1], non_blocking=True),
    )
    here[1].copy_(there[1])
    turns.add(LINK, Way.LOAD.value, load, nbytes)
    turns.add(LINK, Way.SAVE.value, save, nbytes)
    turns.add(LINK, BOTH, _at_once(load, save), 2 * nbytes)
    turns.run(rounds)
    return {direction: turns.gb_s(LINK, direction) or 0.0 for _, direction in turns.copies}


def _loop(parts: int) -> tuple[MemcpyLoop | None, list[str]]:
    if parts > 1:
        return None, [f"no {LOOP} was measured: with {parts} parts it has a call a token, and takes minutes"]
    try:
        return MemcpyLoop(), []
    except OSError as error:
        return None, [f"no {LOOP} was measured: {error}"]


def _page(
    page: int, asked: Asked, arena: Arena, loop: MemcpyLoop | None, link: dict[str, float], device: torch.device
) -> Iterator[dict[str, object]]:
    """A row a method and direction."""
    scene = Scene(arena, asked.shape(page), asked.tokens // page, device)
    turns, movers = Turns(), {}
    for method in asked.methods:
        progress(f"pages of {page} by {method}")
        mover = movers[method] = _mover(scene, method, asked.blocks, asked)
        copies = {way: scene.copier(mover, way) for way in Way}
        for way, copy in copies.items():
            if not scene.right(way, copy):
                raise click.ClickException(f"copies by {method} ({way.value}, pages of {page}) bring wrong bytes")
            turns.add(method, way.value, copy, scene.nbytes)
        turns.add(method, BOTH, _at_once(*copies.values()), 2 * scene.nbytes)
    for way in Way if loop else ():
        turns.add(LOOP, way.value, *loop.copier(scene, way))
    turns.run(asked.rounds)
    for method, mover in movers.items():
        for direction, ways in {**{way.value: [way] for way in Way}, BOTH: list(Way)}.items():
            used = [mover.chosen(way, asked.layers) for way in ways]
            rate, base = turns.gb_s(method, direction) or 0.0, turns.gb_s(LOOP, direction)
            times = sorted(turns.times[method, direction])
            yield {
                "page": page,
                "direction": direction,
                "method": method,
                "by": "+".join(dict.fromkeys(one.method for one in used)),
                "gb_s": rate,
                "spread_gb_s": [round(turns.nbytes[method, direction] / t / 1e9, 2) for t in (times[-1], times[0])],
                "memcpy_loop_gb_s": base,
                "times_memcpy_loop": round(rate / base, 2) if base else None,
                "blocks": sum(one.blocks_of(way) or 0 for one, way in zip(used, ways, strict=True)),
                "share_of_link": round(rate / link[direction], 4),
                "enqueue_ms": round(median(turns.enqueued[method, direction]) * 1e3, 3),
            }


def _mover(scene: Scene, method: Method, blocks: int | None, asked: Asked) -> Mover:
    try:
        return make_mover(scene.pool, scene.host, method, blocks, asked.cache)
    except ValueError as error:
        raise ConfigError(f"{error}; leave {method} out of --methods") from error


def _interference(page: int, asked: Asked, arena: Arena, device: torch.device) -> Iterator[dict[str, object]]:
    """How much longer a large product takes while copies run."""
    scene = Scene(arena, asked.shape(page), asked.tokens // page, device)
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    kernels = ["cuda" if method == "auto" else method for method in asked.methods if method not in ("engine", "torch")][
        :1
    ]
    kinds: list[tuple[Method, int | None]] = [(method, blocks) for method in kernels for blocks in (2, 4)]
    kinds += [("engine", None)] if "engine" in asked.methods or "auto" in asked.methods else []
    for method, blocks in kinds:
        progress(f"products beside copies by {method}")
        mover = _mover(scene, method, blocks, asked)
        for way in Way:
            copy = scene.copier(mover, way)
            turns = [_beside(copy, lambda: torch.mm(a, b, out=product)) for _ in range(asked.rounds)]
            yield {
                "page": page,
                "direction": way.value,
                "method": method,
                "by": mover.chosen(way, asked.layers).method,
                "blocks": mover.blocks_of(way) or 0,
                "product_ms": round(median(turn.alone for turn in turns) * 1e3, 4),
                "beside_ms": round(median(turn.beside for turn in turns) * 1e3, 4),
                "slowdown_percent": round(median(100 * (turn.beside / turn.alone - 1) for turn in turns), 2),
                "copy_gb_s": round(scene.nbytes / median(turn.copy for turn in turns) / 1e9, 2),
            }


def _beside(copy: Copy, multiply: Callable[[], object]) -> Beside:
    """Products in a row, of which some run while copies do.

    Clocks follow the power that is drawn, so products are compared with those shortly before and after them.
    """
    side = torch.cuda.Stream(priority=-1)
    begin, end, copied = _clock(), _clock(), _clock()
    marks = [_clock() for _ in range(BEFORE + AFTER + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1 : BEFORE + 1]:
        multiply()
        mark.record()
    side.wait_event(marks[BEFORE])
    with torch.cuda.stream(side):
        begin.record()
        copy()
        copied.record()
        copy()
        end.record()
    for mark in marks[BEFORE + 1 :]:
        multiply()
        mark.record()
    torch.cuda.synchronize()
    times = [marks[0].elapsed_time(mark) / 1e3 for mark in marks]
    spans = list(zip(times[BEFORE // 2 :], times[BEFORE // 2 + 1 :], strict=False))
    first, done = (marks[0].elapsed_time(event) / 1e3 for event in (begin, end))
    inside = [stop - start for start, stop in spans if start >= first and stop <= done]
    alone = [stop - start for start, stop in spans if stop <= first or start >= done]
    if not inside or times[-1] < done:
        raise click.ClickException("copies and products did not run together as long as was expected")
    return Beside(fmean(alone), fmean(inside), begin.elapsed_time(copied) / 1e3)


def _at_once(load: Copy, save: Copy) -> Copy:
    """Both, each on a stream of its own."""
    streams = [torch.cuda.Stream() for _ in range(2)]

    def both() -> None:
        current = torch.cuda.current_stream()
        for stream, copy in zip(streams, (load, save), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                copy()
        for stream in streams:
            current.wait_stream(stream)

    return both


def _time(copy: Copy) -> tuple[float, float]:
    """Seconds by the device's clock, and those of the CPU until it could go on."""
    begin, end = _clock(), _clock()
    torch.cuda.synchronize()
    begin.record()
    start = time.perf_counter()
    copy()
    enqueued = time.perf_counter() - start
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, enqueued


def _clock() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
