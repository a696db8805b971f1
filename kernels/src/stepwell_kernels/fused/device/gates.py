"""act(gate) * up over rows that hold both."""
# ruff: noqa: N803

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import activated, between, early, late, waited

if TYPE_CHECKING:
    from stepwell_kernels.fused.reference import Act

BLOCK = 2048


@triton.jit
def gate_kernel(x, out, inter, x_stride, ACT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """A program is BLOCK values of one row."""
    early(PDL)
    waited(PDL)
    late(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inter
    at = x + row * x_stride + column
    kind = out.dtype.element_ty
    gate = activated(tl.load(at, mask=inside, other=0.0).to(tl.float32), ACT).to(kind).to(tl.float32)
    up = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * inter + column, (gate * up).to(kind), mask=inside)


def gated(x: torch.Tensor, act: Act, pdl: int | None = None) -> torch.Tensor:
    """See `ops.gated`."""
    flat = x.reshape(-1, x.shape[-1])
    rows, inter = flat.shape[0], flat.shape[1] // 2
    pdl = between(x.device, rows) if pdl is None else pdl
    out = torch.empty((rows, inter), dtype=x.dtype, device=x.device)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(inter))
        gate_kernel[(rows, triton.cdiv(inter, block))](
            flat, out, inter, flat.stride(0), ACT=act, BLOCK=block, PDL=pdl, num_warps=4, launch_pdl=pdl > 0
        )
    return out.view(*x.shape[:-1], inter)
