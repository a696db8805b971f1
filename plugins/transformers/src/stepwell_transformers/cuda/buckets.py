"""For which shapes of steps there are graphs, and which of them a step takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell_kernels.paged import StepShape

SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
"""Decode rows where one more is felt; beyond, every 32."""
STRIDE = 32
BESIDE = ((0, 1), (8, 4), (64, 8))
"""Decode rows and prompts of a step with prompts. A lone prompt is common: it fills whole tiles of tokens, and what it
sees is cut finer where no room is kept for others."""
FEW = 8
"""Decode rows for which there is room beside prompts, however few sizes are named."""
TOKENS = (32, 64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
"""Of a step with prompts, decode rows included, since products are computed in tiles of tokens. Beyond, a step takes
the device longer than its launches take the host."""


def shapes(graphs: bool | Sequence[int], slots: int, chunk: int = TOKENS[-1]) -> tuple[StepShape, ...]:
    """Those of decodes, that of all slots among them unless the sizes were named, and those of a few prompts.

    `chunk`: the most tokens of prompts that a step has.
    """
    if not graphs:
        return ()
    few = (*SMALL, *range(SMALL[-1] + STRIDE, slots, STRIDE), slots) if graphs is True else graphs
    rows = sorted({min(size, slots) for size in few})
    beside = {(min(size, slots), prompts) for size, prompts in BESIDE if size <= max(rows[-1], FEW)}
    return (
        *(StepShape(size, 0, size) for size in rows),
        *(StepShape(size, prompts, tokens) for size, prompts in sorted(beside) for tokens in _tokens(size, chunk)),
    )


def _tokens(decodes: int, chunk: int) -> list[int]:
    """Of steps with so many decode rows, up to the first that holds a chunk beside them."""
    room = [tokens for tokens in TOKENS if tokens > decodes]
    return [tokens for at, tokens in enumerate(room) if not at or room[at - 1] - decodes < chunk]


def fit(decodes: int, prompts: int, tokens: int, shapes: Iterable[StepShape]) -> StepShape | None:
    """The smallest of `shapes` that holds so many decodes and prompts, these of `tokens` tokens; None: none does."""
    held = (
        shape
        for shape in shapes
        if shape.decodes >= decodes
        and shape.tokens - shape.decodes >= tokens
        and (prompts <= shape.prompts if prompts else not shape.prompts)
    )
    return min(held, key=lambda shape: (shape.tokens, shape.decodes), default=None)
