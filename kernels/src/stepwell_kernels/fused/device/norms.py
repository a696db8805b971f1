"""RMSNorm of rows, after a sum with the residual and over the parts of a split product where there are any."""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import between, early, gathered, late, scaled, waited
from stepwell_kernels.fused.norm import Norm


@triton.jit
def norm_kernel(
    x,
    bias,
    before,
    residual,
    weight,
    out,
    total,
    dim,
    x_stride,
    part_stride,
    residual_stride,
    before_eps,
    before_offset,
    eps,
    offset,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    BEFORE: tl.constexpr,
    BEFORE_LATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    WEIGHT: tl.constexpr,
    LATE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program."""
    early(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    kind = out.dtype.element_ty
    by = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset if WEIGHT else 0.0
    waited(PDL)
    value = gathered(x + row * x_stride + column, inside, bias + column, part_stride, PARTS, BIAS, kind)
    if BEFORE:
        first = tl.load(before + column, mask=inside, other=0.0).to(tl.float32) + before_offset
        value = scaled(value, tl.sum(value * value, 0) / dim + before_eps, first, True, BEFORE_LATE, kind)
    if RESIDUAL:
        value += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        value = value.to(kind).to(tl.float32)
        tl.store(total + row * dim + column, value.to(kind), mask=inside)
    late(PDL)
    value = scaled(value, tl.sum(value * value, 0) / dim + eps, by, WEIGHT, LATE, kind)
    tl.store(out + row * dim + column, value.to(kind), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0, late: bool = False
) -> torch.Tensor:
    """See `ops.rms_norm`."""
    return launch_norm(_rows(x), None, x.dtype, Norm(weight, eps, offset, late))[0].view(x.shape)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    late: bool = False,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.add_rms_norm`."""
    out, total = launch_norm(_rows(x), _rows(residual), x.dtype, Norm(weight, eps, offset, late), before)
    return out.view(x.shape), total.view(x.shape)


def launch_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    kind: torch.dtype,
    norm: Norm,
    before: Norm | None = None,
    bias: torch.Tensor | None = None,
    pdl: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x`: [rows, dim], or the parts [parts, rows, dim] of a split product, which `bias` is still to be added to."""
    parts = x.shape[0] if x.dim() == 3 else 1
    rows, dim = x.shape[-2:]
    pdl = between(x.device, rows) if pdl is None else pdl
    out = torch.empty((rows, dim), dtype=kind, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    first = before or norm
    block = triton.next_power_of_2(dim)
    if rows == 0:
        return out, total
    norm_kernel[(rows,)](
        x,
        x if bias is None else bias,
        x if first.weight is None else first.weight,
        x if residual is None else residual,
        x if norm.weight is None else norm.weight,
        out,
        total,
        dim,
        x.stride(-2),
        x.stride(0) if parts > 1 else 0,
        0 if residual is None else residual.stride(0),
        first.eps,
        first.offset,
        norm.eps,
        norm.offset,
        PARTS=parts,
        BIAS=bias is not None,
        BEFORE=before is not None,
        BEFORE_LATE=first.late,
        RESIDUAL=residual is not None,
        WEIGHT=norm.weight is not None,
        LATE=norm.late,
        BLOCK=block,
        PDL=pdl,
        num_warps=min(max(block // 512, 1), 16),
        launch_pdl=pdl > 0,
    )
    return out, total


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])
