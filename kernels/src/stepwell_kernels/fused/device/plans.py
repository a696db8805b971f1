"""How a product of few tokens is cut into programs: by rules measured on an H200, none tried out at start."""

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
    """Steps in flight."""
    warps: int
    tokens: int = 0
    """Tokens that a tile is padded to; 0: the sums of one token, without tensor cores."""
    split: int = 1
    """Parts of the inputs, each a program's, summed afterwards in their order."""


MOST = 64
"""Tokens up to which a product is bound by its weights, and may be ours."""
FEW = 16
"""Tokens that fill the narrowest tile of tensor cores; with them, two programs fit on a processor."""
CROWDED = 32
"""Tokens up to which several programs of a product fit on a processor."""
LEAST = 512
"""Inputs that a part of a split product has at least: less is lost to starting and summing it."""
FULL = 0.7
"""Share of the processors that large weights must give a program, or torch's product is faster."""


def planned(tokens: int, rows: int, cols: int, gated: bool, processors: int) -> Plan | None:
    """The plan for a product, None where torch's is as fast."""
    if not 0 < tokens <= MOST:
        return None
    if tokens == 1:
        return Plan(rows=2 if gated else 4, cols=2048, stages=1, warps=4)
    padded = FEW if tokens <= FEW else 32 if tokens <= 32 else 64
    if gated:
        few = padded == FEW
        return Plan(16, 128, 3, 2, padded) if few else Plan(64, 64, 4, 4, padded)
    tiles = -(-rows // 64)
    if padded > FEW and tiles >= 4 * processors:
        return Plan(rows=128, cols=64, stages=4, warps=4, tokens=padded)
    # All programs run at once: one on a processor, two of few tokens where there are too many tiles for that.
    wide = padded == FEW and 2 * tiles <= processors
    room = processors if wide or padded > FEW else 2 * processors
    fits, pays = max(room // tiles, 1), max(cols // LEAST, 1)
    split = min(fits, pays)
    if split == fits and tiles * split < FULL * processors:
        return None
    return Plan(64, 256 if wide else 128, 3 if wide else 4, 4, padded, split)
