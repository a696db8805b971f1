"""The executor of a model on a CUDA device, made of its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from stepwell import ConfigError, Full, Row, StepPlan, TableEdit
from stepwell_kernels import HostPages, PagePool
from stepwell_kernels.paged import StepShape
from stepwell_kernels.transfer import Mover, make_movers
from stepwell_transformers.apart import Report
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.cuda.buckets import shapes
from stepwell_transformers.cuda.compute import Compute, Ready, paging_on_cuda
from stepwell_transformers.cuda.executor import CudaExecutor
from stepwell_transformers.cuda.graphs import StepGraphs
from stepwell_transformers.cuda.lanes import CudaLane, Lanes
from stepwell_transformers.cuda.library import turns
from stepwell_transformers.cuda.lineup import line_up
from stepwell_transformers.cuda.state import SlotState
from stepwell_transformers.drawing import Drawer
from stepwell_transformers.experts.experts import Experts
from stepwell_transformers.model import PagedModel
from stepwell_transformers.prove import ProofRow
from stepwell_transformers.together import Company
from stepwell_transformers.twobatch.assemble import in_halves


def cuda_executor(
    model: PagedModel,
    pools: Sequence[PagePool],
    slots: int,
    chunk: int,
    config: TransformersConfig,
    cache: Path,
    wake: Callable[[], None],
    report: Report,
    log: logging.Logger,
    company: Callable[[torch.cuda.Stream], Company],
    least: Callable[[int], int] | None = None,
) -> CudaExecutor:
    """Captures graphs unless the config says otherwise.

    `chunk`: tokens of prompts that a step may well have; `cache`: a folder for compiled kernels; `company`: of steps in
    a stream; `least` as of `overlap_of`.
    """
    device, page_size = model.device, pools[0].shape.page_size
    # Copies go before a step where both could start: they are small, and it may wait for them.
    own, loads, saves = CudaLane(device), CudaLane(device, -1), CudaLane(device, -1)
    lanes = Lanes(own, loads, saves, {layer: loads.gate() for layer in range(model.layers)})
    torch.cuda.synchronize(device)  # what was made so far was made in another stream
    with torch.inference_mode(), own.enqueue():
        state = SlotState(model.groups, page_size, slots, _longest(model, pools), device)
        compute = Compute(model, state, paging_on_cuda(model, pools, state, slots), slots, turns(model, pools, state))
        drawer = Drawer(device, slots, model.vocab)
        drawer.prepare(model.dtype)
        graphs, wanted = None, shapes(config.graphs, slots, chunk)
        if model.experts is not None:
            wanted = _captured(wanted, model.experts, log)
        if wanted:
            graphs = StepGraphs(compute, wanted, lambda layer: own.follow(lanes.gates[layer]))
            graphs.capture(own, report, log)
        halves = in_halves(compute, config, wanted, own, partial(CudaLane, device, -1), report, log, least)
        _warm(compute, chunk, report, log)
    movers = partial(movers_for, pools, config, cache)
    return CudaExecutor(compute, graphs, drawer, lanes, movers, wake, log, halves, company(own.stream))


def _captured(wanted: Sequence[StepShape], experts: Experts, log: logging.Logger) -> tuple[StepShape, ...]:
    """Of shapes of steps those that get a graph where experts are dispatched: decodes, if that can be captured."""
    kept = tuple(shape for shape in wanted if not shape.prompts and experts.captures(shape.tokens))
    if wanted and not kept:
        log.warning("decodes run without CUDA graphs: what dispatches their experts cannot run inside one")
    return kept


def proof(
    model: PagedModel, pools: Sequence[PagePool], tokens: int, rows: int, ready: Ready
) -> Callable[[Sequence[ProofRow]], torch.Tensor]:
    """How the proof of a model computes through pages: each row in a slot of its own."""
    state = SlotState(model.groups, pools[0].shape.page_size, rows, tokens, model.device)
    compute = Compute(model, state, paging_on_cuda(model, pools, state, rows), rows, turns(model, pools, state))

    def run(rows: Sequence[ProofRow]) -> torch.Tensor:
        plan = StepPlan(
            0,
            tuple(
                Row(slot, row.start, len(row.tokens), row.tokens.numpy().astype(np.int32).tobytes(), True)
                for slot, row in enumerate(rows)
            ),
            tables=tuple(
                TableEdit(slot, group, 0, pages)
                for slot, row in enumerate(rows)
                for group, pages in enumerate(row.tables)
            ),
        )
        state.write(state.edit(plan))
        lineup = line_up(plan.rows)
        return compute.run(lineup, ready).logits[np.argsort(lineup.order)]

    return run


def _longest(model: PagedModel, pools: Sequence[PagePool]) -> int:
    """Tokens of the longest request: where some layers see everything, no longer than the pages for it."""
    room = [
        pool.pages * pool.shape.page_size
        for pool, group in zip(pools, model.groups, strict=True)
        if isinstance(group.need, Full)
    ]
    return min([model.context, *room])


def _warm(compute: Compute, chunk: int, report: Report, log: logging.Logger) -> None:
    """So that no request waits for the compiler."""
    report("compiling kernels for prompts")
    try:
        compute.warm(min(chunk, compute.model.context))
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        log.warning("a prompt of %d tokens a step does not fit beside the pages: %s", chunk, str(error).splitlines()[0])


def movers_for(
    pools: Sequence[PagePool], config: TransformersConfig, cache: Path, hosts: Sequence[HostPages]
) -> list[Mover]:
    """What copies between each pool and its pages in the arena. ConfigError where that is not to be had."""
    try:
        return make_movers(list(zip(pools, hosts, strict=True)), config.copies, config.copy_blocks, cache)
    except ValueError as error:
        raise ConfigError(f"runner.copies: {config.copies!r} does not work here ({error})") from error
