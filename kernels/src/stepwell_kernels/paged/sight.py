"""What a query sees, and what becomes of its scores: device functions that the attention kernels share."""

# ruff: noqa: N803 - constants of a kernel are upper case

from __future__ import annotations

import triton
import triton.language as tl

SEES = {"all": 0, "window": 1, "chunk": 2}


@triton.jit
def first_seen(place, sight, SEES: tl.constexpr):
    """First token that the query at `place` sees."""
    if SEES == 1:
        low = tl.maximum(place - sight, 0)
    elif SEES == 2:
        low = place // sight * sight
    else:
        low = place * 0
    return low


@triton.jit
def cap(scores, softcap):
    """Bound them smoothly: softcap * tanh(scores / softcap)."""
    return softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
