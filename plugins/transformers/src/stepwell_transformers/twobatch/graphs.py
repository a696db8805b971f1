"""Decode steps as CUDA graphs of two halves, whose exchanges are branches beside them.

A graph is for so many rows in either half; padding fills what a step lacks of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stepwell_kernels.fused import most_likely
from stepwell_kernels.paged import Step, StepBuffers, StepShape
from stepwell_transformers.twobatch.decide import Size
from stepwell_transformers.twobatch.enqueue import Joined

if TYPE_CHECKING:
    from stepwell_transformers.apart import Report
    from stepwell_transformers.cuda.compute import Compute
    from stepwell_transformers.cuda.lanes import CudaLane
    from stepwell_transformers.experts import Told
    from stepwell_transformers.twobatch.overlap import Overlap
    from stepwell_transformers.twobatch.split import Halves


class HalvedGraphs:
    """Those for halves of so many rows each."""

    def __init__(self, compute: Compute, sizes: Sequence[int], overlap: Overlap) -> None:
        self._compute, self._overlap = compute, overlap
        self._sizes = sorted(sizes, reverse=True)
        device, most, idle = compute.model.device, self._sizes[0], compute.state.idle
        self._buffers = [StepBuffers(device, most, most, idle) for _ in range(2)]
        self._turns = {size: [compute.turn(StepShape(size, 0, size)) for _ in range(2)] for size in self._sizes}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Joined]] = {}

    def capture(self, lane: CudaLane, report: Report, log: logging.Logger) -> None:
        """The largest first. Where one fails on any rank, none has it or a smaller one."""
        pool = torch.cuda.graph_pool_handle()
        for done, size in enumerate(self._sizes, 1):
            why = ""
            try:
                self._graphs[size] = self._captured(size, pool, lane)
            except (RuntimeError, NotImplementedError) as error:
                why = str(error).strip().partition("\n")[0] or type(error).__name__
            if not self._compute.model.group.least(int(not why))[0]:
                self._graphs.pop(size, None)
                log.warning("halves run without CUDA graphs: %s", why or "another rank could not capture them")
                return
            report(f"capturing graphs of two halves {done}/{len(self._sizes)}")

    def fits(self, halves: Halves) -> bool:
        """Whether there is one for a step of decodes."""
        return self._size(halves) is not None

    def replay(self, halves: Halves) -> Joined:
        """Enqueue a step that fits on the current stream."""
        size = self._size(halves)
        assert size is not None
        self._fill(
            size, *([(row.slot, row.start, row.count) for row in half] for half in (halves.first, halves.second))
        )
        graph, kept = self._graphs[size]
        graph.replay()
        return Joined(kept.logits, kept.slots, len(halves.first), size, kept.tokens)

    def _size(self, halves: Halves) -> int | None:
        return min((size for size in self._graphs if size >= halves.most), default=None)

    def _captured(self, size: int, pool: Any, lane: CudaLane) -> tuple[torch.cuda.CUDAGraph, Joined]:
        with lane.enqueue():
            steps = self._fill(size, [], [])
            self._step(size, steps)  # compiles kernels, and makes what they keep
            torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=lane.stream, capture_error_mode="thread_local"):
            kept = self._step(size, steps)
        return graph, kept

    def _fill(self, size: int, *halves: Sequence[tuple[int, int, int]]) -> list[Step]:
        for turn, rows in zip(self._turns[size], halves, strict=True):
            if turn is not None:
                turn.plan(rows)
        pairs = zip(self._buffers, halves, strict=True)
        return [buffers.step(buffers.fill(rows, size, size)) for buffers, rows in pairs]

    def _step(self, size: int, steps: Sequence[Step]) -> Joined:
        one, other = (partial(self._half, size, number, step) for number, step in enumerate(steps))
        tokens = 2 * size
        logits = torch.cat(self._overlap.in_turns(Size(tokens, tokens, False), one, other))
        slots = torch.cat([step.slots for step in steps])
        return Joined(logits, slots, size, size, most_likely(logits, slots, self._compute.state.last))

    def _half(self, size: int, number: int, step: Step, told: Told) -> torch.Tensor:
        ids = self._compute.state.last.index_select(0, step.slots)
        ready: Callable[[int], None] = lambda layer: None  # noqa: E731 - decodes alone load nothing that they read
        return self._compute.forward(ids, step, ready, self._turns[size][number], told)
