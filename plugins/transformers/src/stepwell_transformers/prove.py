"""A model is run both ways before it is served: through pages, and by its own library.

A part that keeps state of its own, biases attention, or works its positions out otherwise shows here, whatever it is
called; a model that fails would have answered wrongly, and without a word. A window or a chunk that is short is left
behind by the prompts of this proof; what longer ones see is asked of the library's masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from stepwell import ConfigError, Full
from stepwell.types import Need
from stepwell_kernels import PagePool, RaggedRow
from stepwell_transformers.model import PagedModel
from stepwell_transformers.paging import Foreign, GroupStep, PlainPaging, lay_out
from stepwell_transformers.sight import agrees

PAGE = 4
LENGTHS = (11, 6)
"""Tokens of two rows: all but the last in one step, so that pages are left half full, the last in another."""
REACH = 160
"""The longest window or chunk that the first row is made to leave behind; more would make starts slow."""
STEP = 3
"""Positions after which a model that scales its queries by position changes the scale, here: its own are thousands."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
"""Of the largest logit: a wrong model is off by as much as logits differ."""


@dataclass(frozen=True, slots=True)
class ProofRow:
    """Tokens of a row behind `start`, on the host, and its pages in each group."""

    start: int
    tokens: torch.Tensor
    tables: list[np.ndarray[tuple[int], np.dtype[np.int32]]]


def prove(model: PagedModel, name: str, *, kernels: bool = False) -> None:
    """ConfigError where a model's answers through pages are not its own; by the kernels for CUDA, or by plain torch."""
    lengths = _lengths([group.need for group in model.groups], model.context)
    tokens = [_tokens(length, model.vocab, row) for row, length in enumerate(lengths)]
    with torch.inference_mode(), _soon(model):
        try:
            got, layers = through_pages(model, tokens, kernels)
            sights = model.sights()
        except Foreign as part:
            raise ConfigError(f"runner.model: {name} has attention with {part}, which is not supported yet") from part
        except (TypeError, RuntimeError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"runner.model: {name} does not run on pages ({type(error).__name__}: {str(error).splitlines()[0]})"
            ) from error
        if layers != list(range(model.layers)) * 2:
            raise ConfigError(
                f"runner.model: {name} has layers that do without the attention that pages are read by, "
                f"which is not supported yet ({len(set(layers))} of {model.layers} use it)"
            )
        for layer, seat in model.seats.items():
            need = model.groups[seat.group].need
            if not agrees(sights.get(layer), need, model.context):
                raise ConfigError(
                    f"runner.model: layer {layer} of {name} does not see what its config says it sees ({need}), "
                    "which is not supported"
                )
        with model.by_itself() as plain:
            want = torch.stack(
                [plain(input_ids=row[None].to(model.device), use_cache=False).logits[0, -1] for row in tokens]
            )
    off = float((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-6))
    if not off <= TOLERANCE.get(model.dtype, 1e-1):
        if model.library is not None:
            raise ConfigError(
                f"runner.attention: what {model.library.name!r} answers is not what {name} answers by itself "
                f"(logits are off by {off:.2g} of the largest); use 'triton'"
            )
        raise ConfigError(
            f"runner.model: {name} has a part that keeps or adds something that pages do not hold, "
            f"which is not supported yet (logits are off by {off:.2g} of the largest)"
        )


def _lengths(needs: Sequence[Need], context: int) -> list[int]:
    tokens = [need.tokens for need in needs if not isinstance(need, Full) and need.tokens <= REACH]
    longest = max([LENGTHS[0], *(count + PAGE for count in tokens)])
    return [min(length, context) for length in (longest, *LENGTHS[1:])]


def _tokens(length: int, vocab: int, row: int) -> torch.Tensor:
    return (torch.arange(length) * 7919 + 104729 * (row + 1)) % vocab


@contextmanager
def _soon(model: PagedModel) -> Iterator[None]:
    """Scales that change with position change within the prompts of this proof, on both ways."""
    before = [module.floor_scale for module in model.counting]
    for module in model.counting:
        module.floor_scale = STEP
    try:
        yield
    finally:
        for module, scale in zip(model.counting, before, strict=True):
            module.floor_scale = scale


def through_pages(model: PagedModel, tokens: list[torch.Tensor], kernels: bool) -> tuple[torch.Tensor, list[int]]:
    """Logits after each row's last token, and the layers that were asked in turn."""
    ends = [len(row) for row in tokens]
    counts = [-(-end // PAGE) for end in ends]
    ids = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
    tables = np.split(ids, np.cumsum(counts)[:-1])
    pools = [PagePool(shape, sum(counts), model.device) for shape in model.shapes(PAGE)]
    layers: list[int] = []
    if kernels:
        from stepwell_transformers.cuda.assemble import proof

        run = proof(model, pools, max(ends), len(tokens), layers.append)
    else:
        run = partial(_plainly, model, pools, layers.append)

    def rows(starts: Sequence[int], ends: Sequence[int]) -> list[ProofRow]:
        return [
            ProofRow(start, row[start:end], [_kept(table, group.need.lo(start)) for group in model.groups])
            for row, table, start, end in zip(tokens, tables, starts, ends, strict=True)
        ]

    run(rows([0] * len(ends), [end - 1 for end in ends]))
    return run(rows([end - 1 for end in ends], ends)), layers


def _plainly(
    model: PagedModel, pools: Sequence[PagePool], ready: Callable[[int], None], rows: Sequence[ProofRow]
) -> torch.Tensor:
    steps = []
    for number, (group, pool) in enumerate(zip(model.groups, pools, strict=True)):
        ragged = [RaggedRow(row.start, len(row.tokens), row.tables[number]) for row in rows]
        steps.append(GroupStep(pool, lay_out(ragged, group.need, PAGE, model.device), group.need))
    places = torch.cat([torch.arange(row.start, row.start + len(row.tokens)) for row in rows]).to(model.device)
    last = torch.tensor(np.cumsum([len(row.tokens) for row in rows]) - 1).to(model.device)
    flat = torch.cat([row.tokens for row in rows]).to(model.device)
    return model.forward(flat, places, PlainPaging(steps, model.seats, places, ready), last)


def _kept(table: np.ndarray[tuple[int], np.dtype[np.int32]], low: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """A table without the pages before the one of token `low`."""
    return np.where(np.arange(len(table)) < low // PAGE, np.int32(-1), table)
