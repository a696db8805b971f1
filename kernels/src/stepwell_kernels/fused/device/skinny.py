"""Products of few tokens with a large weight, bound by how fast the weight streams in."""
# ruff: noqa: N803

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import activated, dependent, early, gathered, late, prefetch, waited
from stepwell_kernels.fused.device.plans import Plan

if TYPE_CHECKING:
    from stepwell_kernels.fused.norm import Norm
    from stepwell_kernels.fused.reference import Act


@triton.jit
def prefetched(weight, first, rows, cols, begin, ROWS: tl.constexpr, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Start a tile's first BYTES a row on their way to L2; one chunk a thread."""
    each: tl.constexpr = max(min(THREADS // ROWS, BYTES // 16), 1)
    chunk: tl.constexpr = BYTES // each
    at = tl.arange(0, each * ROWS)
    row = tl.minimum(first + at // each, rows - 1).to(tl.int64)
    column = begin + (at % each) * (chunk // 2)
    column = tl.minimum(column, cols - chunk // 2)
    prefetch((weight + row * cols + column).to(tl.int64, bitcast=True), chunk)


@triton.jit
def streamed(at, inside, WHOLE: tl.constexpr):
    """Weights that nobody reads again soon."""
    if WHOLE:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=inside[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["tokens"])
def dot_kernel(
    x,
    weight,
    bias,
    residual,
    norm,
    out,
    tokens,
    rows,
    cols,
    x_stride,
    residual_stride,
    eps,
    offset,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SPLIT: tl.constexpr,
    ACT: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACROSS: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of ROWS outputs over one part of the columns; ACROSS: weights are the left side of the product."""
    early(PDL)
    part, tile = tl.program_id(0) % SPLIT, tl.program_id(0) // SPLIT
    share = tl.cdiv(cols, COLS * SPLIT) * COLS
    begin = part * share
    end = tl.minimum(begin + share, cols)
    if PREFETCH > 0:
        prefetched(weight, tile * ROWS, rows, cols, begin, ROWS, PREFETCH, THREADS)
        if ACT is not None:
            prefetched(weight + rows.to(tl.int64) * cols, tile * ROWS, rows, cols, begin, ROWS, PREFETCH, THREADS)
    waited(PDL)
    row = tile * ROWS + tl.arange(0, ROWS)
    near = tl.minimum(row, rows - 1).to(tl.int64)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, COLS)
    at_weight = weight + near[:, None] * cols + column[None, :]
    at_x = x + token[:, None] * x_stride + column[None, :]
    real = token < tokens
    squares = tl.zeros([TOKENS], tl.float32)
    if ACROSS:
        total = tl.zeros([ROWS, TOKENS], tl.float32)
        upper = tl.zeros([ROWS, TOKENS], tl.float32)
    else:
        total = tl.zeros([TOKENS, ROWS], tl.float32)
        upper = tl.zeros([TOKENS, ROWS], tl.float32)
    for k in tl.range(begin, end, COLS, num_stages=STAGES):
        inside = k + column < end
        w = streamed(at_weight + k, inside, EVEN)
        xs = tl.load(at_x + k, mask=real[:, None] if EVEN else real[:, None] & inside[None, :], other=0.0)
        if NORM:
            wide = xs.to(tl.float32)
            scale = tl.load(norm + k + column, mask=inside, other=0.0).to(tl.float32) + offset
            squares += tl.sum(wide * wide, 1)
            xs = (wide * scale[None, :]).to(xs.dtype)
        if ACT is not None:
            v = streamed(at_weight + rows.to(tl.int64) * cols + k, inside, EVEN)
            upper = tl.dot(v, tl.trans(xs), upper) if ACROSS else tl.dot(xs, tl.trans(v), upper)
        total = tl.dot(w, tl.trans(xs), total) if ACROSS else tl.dot(xs, tl.trans(w), total)
    late(PDL)
    if ACROSS:
        total, upper = tl.trans(total), tl.trans(upper)
    kept = real[:, None] & (row < rows)[None, :]
    at_out = out + token[:, None] * rows + row[None, :]
    if SPLIT > 1:
        tl.store(at_out + part * tokens * rows, total, mask=kept)
        return
    kind = out.dtype.element_ty
    if NORM:
        scale = tl.rsqrt(squares / cols + eps)
        total, upper = total * scale[:, None], upper * scale[:, None]
    if BIAS:
        total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
        if ACT is not None:
            upper += tl.load(bias + rows + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    found = total.to(kind)
    if ACT is not None:
        found = (activated(found.to(tl.float32), ACT).to(kind).to(tl.float32) * upper.to(kind).to(tl.float32)).to(kind)
    if RESIDUAL:
        more = tl.load(residual + token[:, None] * residual_stride + row[None, :], mask=kept, other=0.0)
        found = (found.to(tl.float32) + more.to(tl.float32)).to(kind)
    tl.store(at_out, found, mask=kept)


@triton.jit
def sum_kernel(
    x,
    weight,
    bias,
    residual,
    norm,
    out,
    rows,
    cols,
    x_stride,
    residual_stride,
    eps,
    offset,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ACT: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PREFETCH: tl.constexpr,
    THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One or two tokens: multiply and add without tensor cores, so that a tile may be a few whole rows."""
    early(PDL)
    tile = tl.program_id(0)
    if PREFETCH > 0:
        prefetched(weight, tile * ROWS, rows, cols, 0, ROWS, PREFETCH, THREADS)
        if ACT is not None:
            prefetched(weight + rows.to(tl.int64) * cols, tile * ROWS, rows, cols, 0, ROWS, PREFETCH, THREADS)
    row = tile * ROWS + tl.arange(0, ROWS)
    near = tl.minimum(row, rows - 1).to(tl.int64)
    column = tl.arange(0, COLS)
    at_weight = weight + near[:, None] * cols + column[None, :]
    at_upper = at_weight + rows.to(tl.int64) * cols
    if AHEAD:
        next_w = streamed(at_weight, column < cols, False)
        if ACT is not None:
            next_v = streamed(at_upper, column < cols, False)
    waited(PDL)
    total = tl.zeros([ROWS, COLS], tl.float32)
    second = tl.zeros([ROWS, COLS], tl.float32)
    upper = tl.zeros([ROWS, COLS], tl.float32)
    upper_second = tl.zeros([ROWS, COLS], tl.float32)
    squares = tl.zeros([COLS], tl.float32)
    squares_second = tl.zeros([COLS], tl.float32)
    for k in tl.range(0, cols, COLS, num_stages=STAGES):
        inside = k + column < cols
        if AHEAD:
            w = next_w.to(tl.float32)
            next_w = streamed(at_weight + k + COLS, k + COLS + column < cols, False)
            if ACT is not None:
                v = next_v.to(tl.float32)
                next_v = streamed(at_upper + k + COLS, k + COLS + column < cols, False)
        else:
            w = streamed(at_weight + k, inside, EVEN).to(tl.float32)
            if ACT is not None:
                v = streamed(at_upper + k, inside, EVEN).to(tl.float32)
        first = tl.load(x + k + column, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.load(norm + k + column, mask=inside, other=0.0).to(tl.float32) + offset
            squares += first * first
            first = (first * scale).to(x.dtype.element_ty).to(tl.float32)
        total += w * first[None, :]
        if ACT is not None:
            upper += v * first[None, :]
        if TOKENS == 2:
            other = tl.load(x + x_stride + k + column, mask=inside, other=0.0).to(tl.float32)
            if NORM:
                squares_second += other * other
                other = (other * scale).to(x.dtype.element_ty).to(tl.float32)
            second += w * other[None, :]
            if ACT is not None:
                upper_second += v * other[None, :]
    late(PDL)
    for token in tl.static_range(TOKENS):
        found = tl.sum(total if token == 0 else second, 1)
        gate_up = tl.sum(upper if token == 0 else upper_second, 1)
        if NORM:
            scale = tl.rsqrt(tl.sum(squares if token == 0 else squares_second, 0) / cols + eps)
            found, gate_up = found * scale, gate_up * scale
        kind = out.dtype.element_ty
        if BIAS:
            found += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)
            if ACT is not None:
                gate_up += tl.load(bias + rows + row, mask=row < rows, other=0.0).to(tl.float32)
        answer = found.to(kind)
        if ACT is not None:
            answer = (
                activated(answer.to(tl.float32), ACT).to(kind).to(tl.float32) * gate_up.to(kind).to(tl.float32)
            ).to(kind)
        if RESIDUAL:
            more = tl.load(residual + token * residual_stride + row, mask=row < rows, other=0.0)
            answer = (answer.to(tl.float32) + more.to(tl.float32)).to(kind)
        tl.store(out + token * rows + row, answer, mask=row < rows)


def launch_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    plan: Plan,
    act: Act | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm: Norm | None = None,
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
    tensors = (
        x,
        weight,
        x if bias is None else bias,
        x if residual is None else residual,
        x if norm is None or norm.weight is None else norm.weight,
        out,
    )
    sizes = (rows, cols, x.stride(0), 0 if residual is None else residual.stride(0))
    scale = (0.0, 0.0) if norm is None else (norm.eps, norm.offset)
    how = {
        "ROWS": plan.rows,
        "COLS": plan.cols,
        "ACT": act,
        "NORM": norm is not None,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "STAGES": max(plan.stages, 1),
        "PREFETCH": plan.prefetch if pdl else 0,
        "THREADS": 32 * plan.warps,
        "PDL": pdl,
        "num_warps": plan.warps,
        "launch_pdl": pdl > 0,
    }
    tiles = triton.cdiv(rows, plan.rows)
    if plan.tokens == 0:
        sum_kernel[(tiles,)](
            *tensors, *sizes, *scale, TOKENS=tokens, EVEN=cols % plan.cols == 0, AHEAD=plan.stages == 0, **how
        )
        return out
    even = cols % (plan.cols * plan.split) == 0
    dot_kernel[(tiles * plan.split,)](
        *tensors, tokens, *sizes, *scale, TOKENS=plan.tokens, SPLIT=plan.split, ACROSS=plan.across, EVEN=even, **how
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


def join(
    parts: torch.Tensor,
    kind: torch.dtype,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    pdl: int | None = None,
) -> torch.Tensor:
    """`parts` [parts, tokens, rows] of a split product: their sum, plus bias, plus residual."""
    pdl = dependent(parts.device) if pdl is None else pdl
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
