"""How a product of few tokens is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a product; every way answers the same but for rounding, whatever the timing."""

    rows: int
    """Outputs of a tile; of a gated product as many gates and as many ups."""
    cols: int
    """Inputs of a step."""
    stages: int
    """Steps in flight; 0: of sums, one step is loaded ahead of the one in hand, the first before the kernel waits."""
    warps: int
    tokens: int = 0
    """Tokens that a tile is padded to; 0: the sums of one or two tokens, without tensor cores."""
    split: int = 1
    """Parts of the inputs, each a program's, summed afterwards in their order."""
    across: bool = True
    """Whether weights are the left side of the product, so that few tokens waste little of it."""
    prefetch: int = 0
    """Bytes of each row that are fetched into L2 before the kernel waits for the one before it."""


MOST = 64
"""Tokens up to which a product is bound by its weights, and may be ours."""


def planned(tokens: int, rows: int, cols: int, gated: bool, processors: int) -> Plan | None:
    """The plan for a product, None where torch's is as fast; by what was measured on an H200 (132 processors)."""
    if not 0 < tokens <= MOST:
        return None
    if tokens <= 2:
        return _sums(tokens, gated)
    padded = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    if gated:
        return Plan(rows=64, cols=64, stages=4, warps=4, tokens=padded)
    tiles = -(-rows // 64)
    if tiles >= 4 * processors:
        wide = tokens > 16
        return Plan(rows=128 if wide else 64, cols=64 if wide else 128, stages=4, warps=4, tokens=padded)
    # All programs run at once: one on a processor where they hold many tokens, else two.
    room = processors * (2 if padded == 16 else 1)
    split = max(min(room // tiles, cols // 2048), 1)
    if tiles * split < 0.8 * processors:
        return None
    return Plan(rows=64, cols=128, stages=4, warps=4, tokens=padded, split=split)


def _sums(tokens: int, gated: bool) -> Plan:
    if gated:
        return Plan(rows=2, cols=1024, stages=1, warps=4)
    return Plan(rows=4, cols=2048 if tokens == 1 else 1024, stages=1, warps=4)
