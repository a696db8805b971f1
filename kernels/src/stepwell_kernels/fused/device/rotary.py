"""Turn Q and K by their positions, norm them per head on the way, and write K and V into their pages."""
# ruff: noqa: N803

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import between, early, gathered, late, scaled, waited
from stepwell_kernels.fused.norm import Norm

if TYPE_CHECKING:
    from stepwell_kernels.paged.place import Place


@triton.jit
def turned(
    x,
    bias,
    x_stride,
    head_stride,
    part_stride,
    out,
    out_stride,
    weight,
    eps,
    offset,
    cos,
    sin,
    token,
    heads,
    block,
    DIM: tl.constexpr,
    ROT: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    LATE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """HEADS heads of one token: both sides of their pairs, and what is not turned."""
    head = block * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    left = 2 * pair if INTERLEAVED else pair
    right = 2 * pair + 1 if INTERLEAVED else pair + ROT // 2
    rest = ROT + tl.arange(0, REST)
    kept = (head < heads)[:, None] & (pair < ROT // 2)[None, :]
    beyond = (head < heads)[:, None] & (rest < DIM)[None, :]
    kind = out.dtype.element_ty
    at = x + token * x_stride + head[:, None] * head_stride
    more = bias + head[:, None] * DIM
    a = gathered(at + left[None, :], kept, more + left[None, :], part_stride, PARTS, BIAS, kind)
    b = gathered(at + right[None, :], kept, more + right[None, :], part_stride, PARTS, BIAS, kind)
    if ROT < DIM:
        c = gathered(at + rest[None, :], beyond, more + rest[None, :], part_stride, PARTS, BIAS, kind)
    if NORM:
        square = tl.sum(a * a, 1) + tl.sum(b * b, 1)
        if ROT < DIM:
            square += tl.sum(c * c, 1)
        square = (square / DIM + eps)[:, None]
        by_a, by_b, by_c = 0.0, 0.0, 0.0
        if WEIGHT:
            by_a = (tl.load(weight + left, mask=pair < ROT // 2, other=0.0).to(tl.float32) + offset)[None, :]
            by_b = (tl.load(weight + right, mask=pair < ROT // 2, other=0.0).to(tl.float32) + offset)[None, :]
            by_c = (tl.load(weight + rest, mask=rest < DIM, other=0.0).to(tl.float32) + offset)[None, :]
        a = scaled(a, square, by_a, WEIGHT, LATE, kind)
        b = scaled(b, square, by_b, WEIGHT, LATE, kind)
        if ROT < DIM:
            c = scaled(c, square, by_c, WEIGHT, LATE, kind)
    at_turn = token * ROT
    near = pair < ROT // 2
    turn = cos.dtype.element_ty
    cos_a = tl.load(cos + at_turn + left, mask=near, other=0.0).to(tl.float32)[None, :]
    sin_a = tl.load(sin + at_turn + left, mask=near, other=0.0).to(tl.float32)[None, :]
    cos_b = tl.load(cos + at_turn + right, mask=near, other=0.0).to(tl.float32)[None, :]
    sin_b = tl.load(sin + at_turn + right, mask=near, other=0.0).to(tl.float32)[None, :]
    # each product is rounded as a module rounds it
    new_a = (a * cos_a).to(turn).to(tl.float32) - (b * sin_a).to(turn).to(tl.float32)
    new_b = (b * cos_b).to(turn).to(tl.float32) + (a * sin_b).to(turn).to(tl.float32)
    to = out + head[:, None] * out_stride
    tl.store(to + left[None, :], new_a.to(kind), mask=kept)
    tl.store(to + right[None, :], new_b.to(kind), mask=kept)
    if ROT < DIM:
        tl.store(to + rest[None, :], c.to(kind), mask=beyond)


@triton.jit
def rotate_kernel(
    q,
    k,
    v,
    q_bias,
    k_bias,
    v_bias,
    cos,
    sin,
    q_weight,
    k_weight,
    q_out,
    k_out,
    v_out,
    pages,
    token_slots,
    positions,
    q_heads,
    kv_heads,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    part_stride,
    width,
    q_eps,
    q_offset,
    k_eps,
    k_offset,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROT: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    Q_NORM: tl.constexpr,
    Q_WEIGHT: tl.constexpr,
    Q_LATE: tl.constexpr,
    K_NORM: tl.constexpr,
    K_WEIGHT: tl.constexpr,
    K_LATE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program is HEADS heads of one token's q, k or v; PAGE: tokens of a page, 0 where K goes to a tensor."""
    early(PDL)
    waited(PDL)
    late(PDL)
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    of_q = tl.cdiv(q_heads, HEADS)
    of_k = tl.cdiv(kv_heads, HEADS)
    if block < of_q:
        turned(
            q, q_bias, q_stride, q_head_stride, part_stride, q_out + token * q_heads * DIM, DIM,
            q_weight, q_eps, q_offset, cos, sin, token, q_heads, block,
            DIM, ROT, HALF, REST, HEADS, PARTS, BIAS, Q_NORM, Q_WEIGHT, Q_LATE, INTERLEAVED,
        )  # fmt: skip
        return
    where = token
    if PAGE > 0:
        position = tl.load(positions + token)
        slot = tl.load(token_slots + token).to(tl.int64)
        page = tl.load(pages + slot * width + position // PAGE).to(tl.int64)
        if page < 0:
            return
        where = page * PAGE + position % PAGE
    if block < of_q + of_k:
        turned(
            k, k_bias, k_stride, k_head_stride, part_stride, k_out + where * kv_heads * DIM, DIM,
            k_weight, k_eps, k_offset, cos, sin, token, kv_heads, block - of_q,
            DIM, ROT, HALF, REST, HEADS, PARTS, BIAS, K_NORM, K_WEIGHT, K_LATE, INTERLEAVED,
        )  # fmt: skip
    elif PAGE > 0:
        head = (block - of_q - of_k) * HEADS + tl.arange(0, HEADS)[:, None]
        column = tl.arange(0, VALUES)[None, :]
        inside = (head < kv_heads) & (column < VALUE_DIM)
        at = v + token * v_stride + head * v_head_stride + column
        bias = v_bias + head * VALUE_DIM + column
        value = gathered(at, inside, bias, part_stride, PARTS, BIAS, v_out.dtype.element_ty)
        to = v_out + (where * kv_heads + head) * VALUE_DIM + column
        tl.store(to, value.to(v_out.dtype.element_ty), mask=inside)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.rotate`."""
    k_out = torch.empty(k.shape, dtype=q.dtype, device=k.device)
    return launch_rotate(q, k, k, cos, sin, k_out, None, q.dtype, q_norm, k_norm, interleaved), k_out


def rotate_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    place: Place,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> torch.Tensor:
    """See `ops.rotate_and_write`."""
    return launch_rotate(q, k, v, cos, sin, None, place, q.dtype, q_norm, k_norm, interleaved)


def launch_rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_out: torch.Tensor | None,
    place: Place | None,
    kind: torch.dtype,
    q_norm: Norm | None,
    k_norm: Norm | None,
    interleaved: bool,
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    pdl: int | None = None,
) -> torch.Tensor:
    """q, k, v: [tokens, heads, dim], or the parts of a split product, [parts, tokens, heads, dim]."""
    parts = q.shape[0] if q.dim() == 4 else 1
    tokens, heads, dim = q.shape[-3:]
    pdl = between(q.device, tokens) if pdl is None else pdl
    kv_heads, value_dim, rot = k.shape[-2], v.shape[-1], cos.shape[-1]
    out = torch.empty((tokens, heads, dim), dtype=kind, device=q.device)
    if tokens == 0:
        return out
    block = 1 if tokens * (heads + 2 * kv_heads) <= 4096 else 8
    blocks = triton.cdiv(heads, block) + (2 if place is not None else 1) * triton.cdiv(kv_heads, block)
    keys, values = (k_out, k_out) if place is None else (place.keys, place.values)
    pages = cos if place is None else place.tables.pages
    rotate_kernel[(tokens, blocks)](
        q,
        k,
        v,
        *(bias or (q, k, v)),
        cos.contiguous(),
        sin.contiguous(),
        q if q_norm is None or q_norm.weight is None else q_norm.weight,
        k if k_norm is None or k_norm.weight is None else k_norm.weight,
        out,
        keys,
        values,
        pages,
        pages if place is None else place.token_slots,
        pages if place is None else place.positions,
        heads,
        kv_heads,
        q.stride(-3),
        q.stride(-2),
        k.stride(-3),
        k.stride(-2),
        v.stride(-3),
        v.stride(-2),
        q.stride(0) if parts > 1 else 0,
        pages.stride(0),
        0.0 if q_norm is None else q_norm.eps,
        0.0 if q_norm is None else q_norm.offset,
        0.0 if k_norm is None else k_norm.eps,
        0.0 if k_norm is None else k_norm.offset,
        PAGE=0 if place is None else place.tables.page_size,
        DIM=dim,
        ROT=rot,
        HALF=triton.next_power_of_2(rot // 2),
        REST=triton.next_power_of_2(max(dim - rot, 1)),
        VALUE_DIM=value_dim,
        VALUES=triton.next_power_of_2(value_dim),
        HEADS=block,
        PARTS=parts,
        BIAS=bias is not None,
        Q_NORM=q_norm is not None,
        Q_WEIGHT=q_norm is not None and q_norm.weight is not None,
        Q_LATE=q_norm is not None and q_norm.late,
        K_NORM=k_norm is not None,
        K_WEIGHT=k_norm is not None and k_norm.weight is not None,
        K_LATE=k_norm is not None and k_norm.late,
        INTERLEAVED=interleaved,
        PDL=pdl,
        num_warps=1 if block == 1 else 4,
        launch_pdl=pdl > 0,
    )
    return out
