"""Steps as CUDA graphs: one for each of some shapes, replayed over what device memory says by then.

A graph of a step with prompts waits, layer by layer, for the gates of loads: events from outside, which a load records
anew. Where nothing is loaded they lie in the past.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from stepwell_kernels.fused import most_likely
from stepwell_kernels.paged import Step, StepBuffers, StepShape
from stepwell_transformers.apart import Report
from stepwell_transformers.cuda.buckets import fit
from stepwell_transformers.cuda.compute import Compute, Computed, Ready
from stepwell_transformers.cuda.lanes import CudaLane
from stepwell_transformers.cuda.lineup import Lineup
from stepwell_transformers.drawing.upload import upload


class StepGraphs:
    """The model's step in `shapes`, padding included."""

    def __init__(self, compute: Compute, shapes: Sequence[StepShape], ready: Ready) -> None:
        """`ready` lets the current stream wait for what is loaded into a layer."""
        self._compute, self._ready = compute, ready
        self._shapes = sorted(shapes, key=lambda shape: (shape.prompts, shape.tokens), reverse=True)
        tokens, idle = max(shape.tokens for shape in shapes), compute.state.idle
        self._buffers = StepBuffers(compute.model.device, max(shape.rows for shape in shapes), tokens, idle)
        self._brought = torch.zeros(tokens, dtype=torch.int32, device=compute.model.device)
        """Tokens of prompts."""
        self._turns = {shape: compute.turn(shape) for shape in self._shapes}
        self._graphs: dict[StepShape, tuple[torch.cuda.CUDAGraph, Computed]] = {}

    def capture(self, lane: CudaLane, report: Report, log: logging.Logger) -> None:
        """The largest first: what the others need then fits into the same memory. One that fails is done without.

        Where it fails on one of several ranks, none has it: ranks that ran other kernels would sum other bits.
        """
        report("compiling kernels")
        pool = torch.cuda.graph_pool_handle()
        broken: dict[bool, str] = {}
        for done, shape in enumerate(self._shapes):
            kind = bool(shape.prompts)
            if kind in broken:
                continue
            why = ""
            try:
                self._graphs[shape] = self._captured(shape, pool, lane)
            except (RuntimeError, NotImplementedError) as error:
                why = str(error).strip().partition("\n")[0] or type(error).__name__
            if not self._compute.model.group.least(int(not why))[0]:
                self._graphs.pop(shape, None)
                broken[kind] = why or "another rank could not capture them"
                log.warning("%s run without CUDA graphs: %s", "prompts" if kind else "decodes", broken[kind])
            report(f"capturing step graphs {done + 1}/{len(self._shapes)}")

    def replay(self, lineup: Lineup, *, loads: bool) -> Computed | None:
        """Enqueue a step on the current stream; None where there is no graph for it.

        With `loads` it takes one that waits for them, though it has no prompt.
        """
        prompts = len(lineup.rows) - lineup.decodes
        shape = fit(lineup.decodes, max(prompts, int(loads)), len(lineup.tokens), self._graphs)
        if shape is None:
            return None
        self._fill(lineup.triples, shape, prompts)
        if prompts:
            (tokens,) = upload(self._brought.device, lineup.tokens)
            self._brought[: len(tokens)] = tokens
        graph, computed = self._graphs[shape]
        graph.replay()
        return computed

    def _captured(self, shape: StepShape, pool: Any, lane: CudaLane) -> tuple[torch.cuda.CUDAGraph, Computed]:
        with lane.enqueue():
            step = self._fill([], shape, 0)
            self._step(step)  # compiles kernels, and makes what they keep
            torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=lane.stream, capture_error_mode="thread_local"):
            computed = self._step(step)
        return graph, computed

    def _fill(self, rows: Sequence[tuple[int, int, int]], shape: StepShape, prompts: int) -> Step:
        if (turn := self._turns[shape]) is not None:
            turn.plan(rows)
        nobody = [(self._compute.state.idle, 0, 0)] * (shape.prompts - prompts)
        return self._buffers.step(self._buffers.fill([*rows, *nobody], shape.rows, shape.tokens))

    def _step(self, step: Step) -> Computed:
        last, cut = self._compute.state.last, step.shape.decodes
        ids = last.index_select(0, step.slots[:cut])
        if step.shape.prompts:
            ids = torch.cat([ids, self._brought[: step.shape.tokens - cut]])
        ready, turn = self._ready if step.shape.prompts else _nothing, self._turns[step.shape]
        logits = self._compute.forward(ids, step, ready, turn)
        return Computed(logits, step, most_likely(logits, step.slots, last))


def _nothing(layer: int) -> None:
    """A step of decodes alone loads nothing that it reads."""
