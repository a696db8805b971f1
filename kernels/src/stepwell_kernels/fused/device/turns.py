"""Cosines and sines of positions."""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import between, early, late, waited
from stepwell_kernels.fused.reference import Spread


@triton.jit
def turns_kernel(
    positions,
    frequencies,
    cos,
    sin,
    scale,
    pairs,
    TIMES: tl.constexpr,
    BESIDE: tl.constexpr,
    PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token a program; TIMES: how often its factors are written; BESIDE: each beside itself."""
    early(PDL)
    waited(PDL)
    late(PDL)
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    inside = pair < pairs
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + pair, mask=inside, other=0.0)
    for time in tl.static_range(TIMES):
        at = token * TIMES * pairs + (pair * TIMES + time if BESIDE else time * pairs + pair)
        tl.store(cos + at, (tl.cos(angle) * scale).to(cos.dtype.element_ty), mask=inside)
        tl.store(sin + at, (tl.sin(angle) * scale).to(sin.dtype.element_ty), mask=inside)


def turns(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, kind: torch.dtype, spread: Spread
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.turns`."""
    tokens, (pairs,), times = len(positions), frequencies.shape, 1 if spread == "once" else 2
    cos = torch.empty((tokens, times * pairs), dtype=kind, device=positions.device)
    sin = torch.empty_like(cos)
    if not tokens:
        return cos, sin
    pdl = between(positions.device, tokens)
    turns_kernel[(tokens,)](
        positions,
        frequencies,
        cos,
        sin,
        scale,
        pairs,
        TIMES=times,
        BESIDE=spread == "beside",
        PAIRS=triton.next_power_of_2(pairs),
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl > 0,
    )
    return cos, sin
