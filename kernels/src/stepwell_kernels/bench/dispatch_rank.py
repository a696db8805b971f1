"""One rank of `stepwell bench dispatch`, a process of its own; all do the same in the same order.

What it has found goes to its output. A backend and what it sends with take turns, and each turn begins together.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch

from stepwell import Capability, Dispatched, Dispatcher, Format, StepwellError, Traffic
from stepwell.cli.options import read_config
from stepwell.config import Config
from stepwell.offers import Part
from stepwell_kernels.collective import Group, join
from stepwell_kernels.dispatch.direct import Direct, HasDirect
from stepwell_kernels.dispatch.experts import dequantised
from stepwell_kernels.dispatch.permute import to_ranks
from stepwell_kernels.dispatch.wire import DTYPES

WARM = 3
TIMEOUT_S = 120.0
REPEATS = 20
"""Batches of a graph, so that its launch does not count."""
OFF = 0.1
"""Of the largest number: a sum that is further off than any rounding makes it."""


class Batches(msgspec.Struct, frozen=True):
    """What every backend gets."""

    lengths: tuple[int, ...]
    hidden: int
    top_k: int
    experts: int
    dtype: str
    rounds: int
    sets: tuple[str, ...]


class Asked(msgspec.Struct, frozen=True):
    """What a rank is to measure."""

    backend: str
    device: str
    rank: int
    world: int
    meet: str
    batches: Batches


class Found(msgspec.Struct, frozen=True):
    """Of one number of tokens: seconds of each turn."""

    tokens: int
    format: str
    nbytes: int
    """Of this rank's tokens that go to others."""
    error: float
    """How far sums were off, at most, of the largest number."""
    dispatch: list[float]
    combine: list[float]
    direct: list[float]
    """Both, by what the backend sends with; empty where it does not say how."""
    graph: list[float]
    """Both, replayed; empty where they cannot be captured."""


class Place(msgspec.Struct, frozen=True):
    """Where a backend is made; a Context."""

    rank: int
    world: int
    meet: str
    device: str
    state_dir: Path
    clock: Callable[[], float] = time.monotonic
    log: logging.Logger = logging.getLogger("stepwell.bench")
    group: int = 0
    groups: int = 1
    commons: str = ""


class Batch(msgspec.Struct, frozen=True):
    """Tokens of this rank, their experts and weights."""

    tokens: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


def main(asked: Asked) -> list[Found]:
    """Measure all that is asked."""
    device = torch.device(f"cuda:{asked.rank}" if asked.device == "cuda" else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    with torch.inference_mode(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        group = join(asked.meet, asked.rank, asked.world, device, TIMEOUT_S, one_shot=False, name="bench")
        return [_measured(asked, length, at, group, device) for at, length in enumerate(asked.batches.lengths)]


def _measured(asked: Asked, length: int, at: int, group: Group, device: torch.device) -> Found:
    what = asked.batches
    part, config = _part(asked)
    place = Place(asked.rank, asked.world, f"{asked.meet}-{at}", str(device), config.cache_dir / "bench")
    dispatcher = part.make(place)
    dispatcher.open(Traffic(what.experts, what.top_k, what.hidden, what.dtype, length))
    try:
        batch = _batch(asked, min(length, dispatcher.capacity or length), device)
        return _timed(asked, batch, dispatcher, group, Capability.GRAPH_SAFE in part.provides)
    finally:
        dispatcher.close()


def _part(asked: Asked) -> tuple[Part[Dispatcher[torch.Tensor]], Config]:
    config = read_config(None, asked.batches.sets)
    registry = config.load_plugins()
    return config.choose_inside("bench", (asked.backend,), "dispatch", registry, asked.backend), config


def _batch(asked: Asked, count: int, device: torch.device) -> Batch:
    what = asked.batches
    dice = torch.Generator().manual_seed(asked.rank)
    experts = torch.rand(count, what.experts, generator=dice).topk(what.top_k).indices
    tokens = torch.randn(count, what.hidden, generator=dice).to(DTYPES[what.dtype])
    return Batch(tokens.to(device), experts.to(device), torch.rand(count, what.top_k, generator=dice).to(device))


def _timed(asked: Asked, batch: Batch, dispatcher: Dispatcher[torch.Tensor], group: Group, safe: bool) -> Found:
    turns = asked.batches.rounds
    error = _checked(dispatcher, batch)
    by_hand = (
        dispatcher.direct(batch.tokens, batch.experts, batch.weights) if isinstance(dispatcher, HasDirect) else None
    )
    dispatch, combine, direct = [], [], []
    for turn in range(WARM + turns):
        times = _turn(dispatcher, batch, group)
        both = [] if by_hand is None else [_directly(by_hand, batch, group)]
        if turn >= WARM:
            dispatch.append(times[0])
            combine.append(times[1])
            direct += both
    graph = _replayed(dispatcher, batch, group, turns) if safe and batch.tokens.is_cuda else []
    rows = to_ranks(batch.experts, asked.world, asked.batches.experts // asked.world).sizes[:, 0].tolist()
    nbytes = (sum(rows) - rows[asked.rank]) * batch.tokens[0].nbytes
    return Found(len(batch.tokens), dispatcher.format.value, nbytes, error, dispatch, combine, direct, graph)


def _turn(dispatcher: Dispatcher[torch.Tensor], batch: Batch, group: Group) -> tuple[float, float]:
    clock = _Clock(batch.tokens.device)
    group.least(0)
    clock.note()
    got = dispatcher.dispatch_finish(dispatcher.dispatch_start(batch.tokens, batch.experts, batch.weights))
    clock.note()
    outputs = _answers(got, dispatcher.format, batch.tokens.dtype)
    group.least(0)
    clock.note()
    dispatcher.combine_finish(dispatcher.combine_start(outputs, got))
    clock.note()
    there, _, back = clock.between()
    return there, back


def _directly(by_hand: Direct, batch: Batch, group: Group) -> float:
    clock = _Clock(batch.tokens.device)
    for call in (by_hand.dispatch, by_hand.combine):
        group.least(0)
        clock.note()
        call()
        clock.note()
    there, _, back = clock.between()
    return there + back


def _replayed(dispatcher: Dispatcher[torch.Tensor], batch: Batch, group: Group, turns: int) -> list[float]:
    """Seconds of a dispatch and its combine, many of which are captured in one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            got = dispatcher.dispatch_finish(dispatcher.dispatch_start(batch.tokens, batch.experts, batch.weights))
            outputs = got.tokens if got.scales is None else torch.empty_like(got.tokens, dtype=batch.tokens.dtype)
            dispatcher.combine_finish(dispatcher.combine_start(outputs, got))
    times = []
    for turn in range(WARM + turns):
        clock = _Clock(batch.tokens.device)
        group.least(0)
        clock.note()
        graph.replay()
        clock.note()
        times += [clock.between()[0] / REPEATS] if turn >= WARM else []
    return times


def _checked(dispatcher: Dispatcher[torch.Tensor], batch: Batch) -> float:
    """How far the sums of a batch are off, where every expert answers with the token."""
    got = dispatcher.dispatch_finish(dispatcher.dispatch_start(batch.tokens, batch.experts, batch.weights))
    outputs = _answers(got, dispatcher.format, batch.tokens.dtype)
    sums = dispatcher.combine_finish(dispatcher.combine_start(outputs, got)).float()
    right = batch.tokens.float() * batch.weights.sum(1, keepdim=True)
    off = float((sums - right).abs().max() / right.abs().max())
    if not off < OFF:
        raise StepwellError(f"sums are off by {off:.2g} of the largest number")
    return off


def _answers(got: Dispatched[torch.Tensor], format: Format, dtype: torch.dtype) -> torch.Tensor:
    tokens = dequantised(got.tokens, got.scales, dtype)
    if format is not Format.ONCE or got.experts is None or got.weights is None:
        return tokens.clone()
    return (tokens * torch.where(got.experts < 0, 0, got.weights).sum(1, keepdim=True)).to(dtype)


class _Clock:
    """Points in time: of the stream where there is one, so that what the host takes ahead of it does not count."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []

    def note(self) -> None:
        if not self._cuda:
            self._times.append(time.perf_counter())
            return
        self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[-1].record()

    def between(self) -> list[float]:
        """Seconds from each point to the next."""
        if not self._cuda:
            return [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        torch.cuda.synchronize()
        return [one.elapsed_time(two) / 1e3 for one, two in zip(self._events, self._events[1:], strict=False)]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Asked))))
