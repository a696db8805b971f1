"""Products of few tokens with a large weight, bound by how fast the weight streams in.

Norms of the input stay kernels of their own: every program would read all of the input again, and its norm's weight.
"""
# ruff: noqa: N803

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import (
    activated,
    between,
    dependent,
    early,
    gathered,
    late,
    streamed,
    waited,
)
from stepwell_kernels.fused.device.plans import Plan

if TYPE_CHECKING:
    from stepwell_kernels.fused.reference import Act


def launch_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    plan: Plan,
    act: Act | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    pdl: int | None = None,
) -> torch.Tensor:
    """`x` [tokens, cols]. Answers [tokens, rows], or the bare parts [split, tokens, rows] of a split product."""
    pdl = dependent(x.device) if pdl is None else pdl
    tokens, cols = x.shape
    rows = weight.shape[0] // (1 if act is None else 2)
    if plan.split > 1:
        out = torch.empty((plan.split, tokens, rows), dtype=torch.float32, device=x.device)
    else:
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
    tensors = x, weight, x if bias is None else bias, x if residual is None else residual, out
    sizes = rows, cols, x.stride(0), 0 if residual is None else residual.stride(0)
    how = {
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "ACT": act,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "STAGES": plan.stages,
        "PDL": pdl,
        "num_warps": plan.warps,
        "launch_pdl": pdl > 0,
    }
    tiles = triton.cdiv(rows, plan.rows)
    if plan.tokens == 0:
        even = cols % plan.cols == 0
        sum_kernel[(tiles,)](*tensors, *sizes, EVEN=even, **how)
        return out
    dot_kernel[(tiles * plan.split,)](
        *tensors,
        tokens,
        *sizes,
        TOKENS=plan.tokens,
        SPLIT=plan.split,
        EVEN=cols % (plan.cols * plan.split) == 0,
        **how,
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def dot_kernel(
    x,
    weight,
    bias,
    residual,
    out,
    tokens,
    rows,
    cols,
    x_stride,
    residual_stride,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SPLIT: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of ROWS outputs over one part of the columns; weights are the left side, so few tokens waste little."""
    early(PDL)
    part, tile = tl.program_id(0) % SPLIT, tl.program_id(0) // SPLIT
    share = tl.cdiv(cols, COLS * SPLIT) * COLS
    begin = part * share
    end = tl.minimum(begin + share, cols)
    side = rows.to(tl.int64) * cols
    waited(PDL)
    row = tile * ROWS + tl.arange(0, ROWS)
    near = tl.minimum(row, rows - 1).to(tl.int64)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, COLS)
    at_weight = weight + near[:, None] * cols + column[None, :]
    at_x = x + token[:, None] * x_stride + column[None, :]
    real = token < tokens
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    upper = tl.zeros([ROWS, TOKENS], tl.float32)
    for k in tl.range(begin, end, COLS, num_stages=STAGES):
        inside = k + column < end
        w = streamed(at_weight + k, inside, EVEN)
        xs = tl.load(at_x + k, mask=real[:, None] if EVEN else real[:, None] & inside[None, :], other=0.0)
        if ACT is not None:
            v = streamed(at_weight + side + k, inside, EVEN)
            upper = tl.dot(v, tl.trans(xs), upper)
        total = tl.dot(w, tl.trans(xs), total)
    late(PDL)
    total, upper = tl.trans(total), tl.trans(upper)
    kept = real[:, None] & (row < rows)[None, :]
    at_out = token[:, None] * rows + row[None, :]
    if SPLIT > 1:
        tl.store(out + part * tokens * rows + at_out, total, mask=kept)
        return
    more = residual + token[:, None] * residual_stride + row[None, :]
    wide = row[None, :] < rows
    finished(total, upper, bias + row[None, :], wide, more, kept, out + at_out, rows, ACT, BIAS, RESIDUAL)


@triton.jit
def sum_kernel(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    cols,
    x_stride,
    residual_stride,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token: multiply and add without tensor cores, so that a tile may be a few whole rows."""
    early(PDL)
    waited(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    near = tl.minimum(row, rows - 1).to(tl.int64)
    column = tl.arange(0, COLS)
    at_weight = weight + near[:, None] * cols + column[None, :]
    side = rows.to(tl.int64) * cols
    total = tl.zeros([ROWS, COLS], tl.float32)
    upper = tl.zeros([ROWS, COLS], tl.float32)
    for k in tl.range(0, cols, COLS, num_stages=STAGES):
        inside = k + column < cols
        xs = tl.load(x + k + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        total += streamed(at_weight + k, inside, EVEN).to(tl.float32) * xs
        if ACT is not None:
            upper += streamed(at_weight + side + k, inside, EVEN).to(tl.float32) * xs
    late(PDL)
    kept = row < rows
    found, more = tl.sum(total, 1), tl.sum(upper, 1)
    finished(found, more, bias + row, kept, residual + row, kept, out + row, rows, ACT, BIAS, RESIDUAL)


@triton.jit
def finished(
    total,
    upper,
    bias,
    wide,
    residual,
    kept,
    to,
    rows,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """Bias, gate and residual, each rounded as a module rounds it."""
    kind = to.dtype.element_ty
    if BIAS:
        total += tl.load(bias, mask=wide, other=0.0).to(tl.float32)
        if ACT is not None:
            upper += tl.load(bias + rows, mask=wide, other=0.0).to(tl.float32)
    found = total.to(kind).to(tl.float32)
    if ACT is not None:
        found = activated(found, ACT).to(kind).to(tl.float32) * upper.to(kind).to(tl.float32)
        found = found.to(kind).to(tl.float32)
    if RESIDUAL:
        found += tl.load(residual, mask=kept, other=0.0).to(tl.float32)
    tl.store(to, found.to(kind), mask=kept)


def join(
    parts: torch.Tensor,
    kind: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    pdl: int | None = None,
) -> torch.Tensor:
    """`parts` [parts, tokens, rows] of a split product: their sum, plus bias, plus residual."""
    pdl = between(parts.device, parts.shape[1]) if pdl is None else pdl
    out = torch.empty(parts.shape[1:], dtype=kind, device=parts.device)
    block = 256 if out.numel() <= 1 << 16 else 1024
    join_kernel[(triton.cdiv(out.numel(), block),)](
        parts,
        parts if bias is None else bias,
        parts if residual is None else residual,
        out,
        out.numel(),
        out.shape[1],
        0 if residual is None else residual.stride(0),
        PARTS=parts.shape[0],
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        BLOCK=block,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl > 0,
    )
    return out


@triton.jit
def join_kernel(
    parts,
    bias,
    residual,
    out,
    size,
    rows,
    residual_stride,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sum the parts of a split product in their order."""
    early(PDL)
    waited(PDL)
    late(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    kind = out.dtype.element_ty
    value = gathered(parts + at, inside, bias + at % rows, size, PARTS, BIAS, kind)
    if RESIDUAL:
        value += tl.load(residual + at // rows * residual_stride + at % rows, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(kind), mask=inside)
