"""Decode steps as CUDA graphs: one for each of some numbers of rows, replayed over what device memory says by then."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepwell_kernels.paged import Step, StepBuffers
from stepwell_transformers.apart import Report
from stepwell_transformers.cuda.buckets import fit
from stepwell_transformers.cuda.compute import Compute
from stepwell_transformers.cuda.lanes import CudaLane
from stepwell_transformers.cuda.lineup import Lineup


@dataclass(frozen=True, slots=True)
class Decoded:
    """Where a graph leaves what it computed; the next replay of any graph may write over it."""

    logits: torch.Tensor
    tokens: torch.Tensor
    """int32 [rows]: the most likely ones."""
    step: Step


class DecodeGraphs:
    """The model's decode step for `sizes` rows each, padding included."""

    def __init__(self, compute: Compute, rows: Sequence[int]) -> None:
        self._compute = compute
        self._sizes = tuple(sorted(rows))
        most = self._sizes[-1]
        self._buffers = StepBuffers(compute.model.device, most, most, compute.state.idle)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Decoded]] = {}

    def capture(self, lane: CudaLane, report: Report, log: logging.Logger) -> None:
        """The largest first: what the others need then fits into the same memory. Stops where one fails."""
        report("compiling kernels")
        pool = torch.cuda.graph_pool_handle()
        for done, rows in enumerate(reversed(self._sizes)):
            try:
                self._graphs[rows] = self._captured(rows, pool, lane)
            except (RuntimeError, NotImplementedError) as error:
                log.warning("decode runs without CUDA graphs from %d rows down: %s", rows, _line(error))
                break
            report(f"capturing decode graphs {done + 1}/{len(self._sizes)}")
        self._sizes = tuple(sorted(self._graphs))

    def replay(self, lineup: Lineup) -> Decoded | None:
        """Enqueue a step on the current stream; None where there is no graph for it."""
        rows = fit(lineup.decodes, self._sizes)
        if rows is None or len(lineup.rows) > lineup.decodes:
            return None
        self._buffers.fill(lineup.triples, rows, rows)
        graph, decoded = self._graphs[rows]
        graph.replay()
        return decoded

    def _captured(self, rows: int, pool: Any, lane: CudaLane) -> tuple[torch.cuda.CUDAGraph, Decoded]:
        with lane.enqueue():
            step = self._buffers.step(self._buffers.fill([], rows, rows))
            self._decode(step)  # compiles kernels, and makes what they keep
            torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=lane.stream, capture_error_mode="thread_local"):
            decoded = self._decode(step)
        return graph, decoded

    def _decode(self, step: Step) -> Decoded:
        state = self._compute.state
        logits = self._compute.forward(state.last[step.slots], step, lambda _: None)
        tokens = logits.argmax(-1).int()
        state.last[step.slots] = tokens
        return Decoded(logits, tokens, step)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
