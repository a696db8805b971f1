"""One rank of `stepwell bench spread`, a process of its own: steps by the runner, in lockstep with the other ranks'.

All ranks do the same in the same order, a fixed number of times, and know nothing of each other but what their
collectives tell them. The first says what it has found on its output.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import torch

from stepwell_kernels.collective import Group, join
from stepwell_kernels.fused import Norm, add_rms_norm
from stepwell_transformers.bench import options
from stepwell_transformers.bench.report import progress
from stepwell_transformers.bench.rig import Rig, rigged
from stepwell_transformers.model import PagedModel
from stepwell_transformers.prove import through_pages

WARM = 4
FILLED = 64
"""Host pages of each group that hold what device pages are filled with."""
LONG = 48
"""Tokens of the prompts whose logits are compared."""
REPEATS = 50
"""Collectives of a graph, so that a launch does not count."""


class Asked(msgspec.Struct, frozen=True):
    """What a rank is to measure."""

    model: str
    device: str
    page_size: int
    rounds: int
    sets: tuple[str, ...]
    rank: int
    world: int
    meet: str
    one_shot: bool
    prompts: tuple[int, ...]
    points: tuple[tuple[int, int], ...]
    steps: int
    sums: tuple[int, ...]
    """Rows of the sums that are timed."""
    logits: tuple[str, ...]
    """Files for them: of this model, and of the same with nothing fused, which rounds elsewhere."""
    compared: int
    """Prompts that have them."""


class Found(msgspec.Struct, frozen=True):
    """Medians, in seconds."""

    prefill: dict[int, float]
    decode: list[float]
    """By point."""
    sums: list[dict[str, float]]
    """By rows: microseconds of each way."""


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where ranks meet anew for each group."""

    asked: Asked
    device: torch.device

    def join(self, name: str, one_shot: bool) -> Group:
        return join(f"{self.asked.meet}-{name}", self.asked.rank, self.asked.world, self.device, 120, one_shot=one_shot)


def main(asked: Asked) -> Found:
    """Measure all that is asked."""
    setup = options.setup(asked.model, asked.device, asked.page_size, asked.rounds, asked.sets)
    device = torch.device(f"cuda:{asked.rank}" if asked.device == "cuda" else asked.device)
    place = replace(setup.place(), device=str(device), rank=asked.rank, world=asked.world, meet=f"{asked.meet}-model")
    sizes = tuple(sorted({batch for batch, _ in asked.points}))
    variant = setup.changed(graphs=sizes, one_shot=asked.one_shot)
    if device.type == "cpu":
        torch.set_num_threads(1)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        sums = _sums(_Meeting(asked, device), asked.sums) if asked.world > 1 else []
        with rigged(variant.settings, place, asked.page_size) as rig:
            for file in asked.logits[:1]:
                _compared(rig, asked.compared, None if asked.rank else Path(file))
            prefill, decode = _steps(rig, asked)
        for file in asked.logits[1:]:
            with rigged(replace(variant.settings, fuse="off"), place, asked.page_size) as rig:
                _compared(rig, asked.compared, Path(file))
    return Found(prefill, decode, sums)


def _steps(rig: Rig, asked: Asked) -> tuple[dict[int, float], list[float]]:
    new = asked.steps + WARM
    needs = [rig.pages_for(1, 0, length) for length in asked.prompts]
    needs += [rig.pages_for(batch, context, new) for batch, context in asked.points]
    pages = {group.name: max(need[group.name] for need in needs) for group in rig.groups}
    most = max([1, *(batch for batch, _ in asked.points)])
    rig.open(pages, most, {name: min(FILLED, count) for name, count in pages.items()})
    prompts: dict[int, list[float]] = defaultdict(list)
    decodes: list[list[float]] = [[] for _ in asked.points]
    for turn in range(asked.rounds + 1):
        for length in asked.prompts:
            (seat,) = rig.seat(1, 0, length)
            ends = rig.timed(rig.chunks(seat, 0, length, rig.runner.preferred_chunk))
            prompts[length] += [ends[-1] - ends[0]] if turn else []
        for times, (batch, context) in zip(decodes, asked.points, strict=True):
            ends = rig.timed(rig.decodes(rig.seat(batch, context, new), context, new))[WARM:]
            times += np.diff(ends).tolist() if turn else []
        if not asked.rank:
            progress(f"{asked.world} ranks: turn {turn} of {asked.rounds}")
    return {length: median(times) for length, times in prompts.items()}, [median(times) for times in decodes]


def _compared(rig: Rig, prompts: int, file: Path | None) -> None:
    """The logits behind some prompts, into the file of whoever has one."""
    model: PagedModel = rig.runner._model
    random = torch.Generator().manual_seed(11)
    length = min(LONG, model.context)
    tokens = [torch.randint(0, model.vocab, (length,), generator=random) for _ in range(prompts)]
    with torch.inference_mode():
        logits, _ = through_pages(model, tokens, kernels=rig.device.type == "cuda")
    if file is not None:
        np.save(file, logits.float().cpu().numpy())


def _sums(meeting: _Meeting, sizes: tuple[int, ...], dim: int = 4096) -> list[dict[str, float]]:
    """Sums of so many rows: through torch.distributed, by what the runner has, and with residual and norm behind."""
    device = meeting.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows = []
    plain, own = meeting.join("plain", False), meeting.join("own", True)
    norm = Norm(torch.ones(dim, dtype=dtype, device=device), 1e-5)
    for size in sizes:
        x, residual = (torch.ones(size, dim, dtype=dtype, device=device) for _ in range(2))

        def apart(x: torch.Tensor = x, residual: torch.Tensor = residual) -> None:
            add_rms_norm(plain.all_reduce(x), residual, norm.weight, norm.eps)

        def fused(x: torch.Tensor = x, residual: torch.Tensor = residual) -> None:
            own.all_reduce_add_norm(x, residual, norm)

        ways: Mapping[str, Callable[[], object]] = {
            "plain_us": lambda x=x: plain.all_reduce(x),  # type: ignore[misc]
            "own_us": lambda x=x: own.all_reduce(x),  # type: ignore[misc]
            "plain_norm_us": apart,
            "own_norm_us": fused,
        }
        rows.append({"rows": float(size)} | {name: _timed(way, device) for name, way in ways.items()})
    plain.close()
    own.close()
    return rows


def _timed(collective: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one, of many in a row; on a device in a graph."""
    if device.type != "cuda":
        collective()
        start = time.perf_counter()
        for _ in range(REPEATS):
            collective()
        return (time.perf_counter() - start) / REPEATS * 1e6
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(3):
            collective()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(REPEATS):
                collective()
        found = []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) * 1e3 / REPEATS)
    return median(found[1:])


if __name__ == "__main__":
    what = msgspec.json.decode(sys.argv[1], type=Asked)
    found = main(what)
    if not what.rank:
        print(msgspec.json.encode(found).decode(), flush=True)
