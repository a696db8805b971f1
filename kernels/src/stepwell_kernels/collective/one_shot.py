"""A sum over ranks in one kernel: every rank writes its part into the memory of all others and adds up what arrives.

Each word of eight bytes carries two numbers and the count of the sum that they belong to, so a reader knows of each
word by itself whether it has come: nothing waits for a fence, nor for a flag behind the data. Counts live in device
memory, one a row, so that a captured graph goes on counting. Two sets of words alternate: a rank that is at a row's sum
n + 1 has had everybody's part of sum n, so everybody has begun that one and is done with reading sum n - 1. A kernel
that starts before those ahead have ended touches nothing of this until it has waited for them.
"""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import between, early, late, scaled, waited
from stepwell_kernels.fused.norm import Norm


@triton.jit
def _low(pair):
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def _high(pair):
    return ((pair >> 16) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _bits(value):
    return value.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def _pair(low, high):
    return _bits(low) | (_bits(high) << 16)


@triton.jit
def _rounded(value):
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _joined(at, inside, apart, PARTS: tl.constexpr):
    """A pair of the sum of a product's parts in their order; both numbers of a pair are read as one."""
    low = tl.zeros(at.shape, tl.float32)
    high = tl.zeros(at.shape, tl.float32)
    for part in tl.static_range(PARTS):
        both = tl.load(at + part * apart, mask=inside, other=0)
        low += both.to(tl.int32).to(tl.float32, bitcast=True)
        high += (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return _pair(low, high)


@triton.jit
def one_shot_kernel(
    part,
    peers,
    counts,
    residual,
    weight,
    out,
    total,
    pairs,
    apart,
    rows,
    wide,
    eps,
    offset,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    PARTS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    LATE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row a program; tensors are pairs of bfloat16, parts of a product float32. `peers`: where ranks' words begin.

    Words are [2, WORLD, rows, wide]: of the set, from which rank, of which row.
    """
    early(PDL)
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < pairs
    by_low = 0.0
    by_high = 0.0
    if WEIGHT:
        by = tl.load(weight + at, mask=inside, other=0)
        by_low = _low(by) + offset
        by_high = _high(by) + offset
    waited(PDL)
    late(PDL)
    count = tl.load(counts + row) + 1
    if PARTS > 1:
        mine = _joined(part + row * pairs + at, inside, apart, PARTS)
    else:
        mine = tl.load(part + row * pairs + at, mask=inside, other=0)
    stamp = count.to(tl.int64) << 32
    word = (mine.to(tl.int64) & 0xFFFFFFFF) | stamp
    begin = (count & 1) * WORLD * rows * wide + row * wide
    for rank in tl.static_range(WORLD):
        if rank != RANK:
            theirs = tl.multiple_of(tl.load(peers + rank).to(tl.pointer_type(tl.int64)), 16)
            tl.store(theirs + begin + RANK * rows * wide + at, word, mask=inside)
    if RESIDUAL:
        before = tl.load(residual + row * pairs + at, mask=inside, other=0)
    own = tl.multiple_of(tl.load(peers + RANK).to(tl.pointer_type(tl.int64)), 16)
    low = tl.zeros((BLOCK,), tl.float32)
    high = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(WORLD):
        pair = mine
        if rank != RANK:
            source = own + begin + rank * rows * wide + at
            came = tl.load(source, mask=inside, other=0, volatile=True)
            lacking = tl.sum((inside & ((came >> 32) != count)).to(tl.int32), 0)
            while lacking > 0:
                came = tl.load(source, mask=inside, other=0, volatile=True)
                lacking = tl.sum((inside & ((came >> 32) != count)).to(tl.int32), 0)
            pair = came.to(tl.int32)
        low += _low(pair)
        high += _high(pair)
    tl.store(counts + row, count)
    if RESIDUAL:
        low = _rounded(low + _low(before))
        high = _rounded(high + _high(before))
        tl.store(total + row * pairs + at, _pair(low, high), mask=inside)
    if NORM:
        square = (tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * pairs) + eps
        low = scaled(low, square, by_low, WEIGHT, LATE, tl.bfloat16)
        high = scaled(high, square, by_high, WEIGHT, LATE, tl.bfloat16)
    tl.store(out + row * pairs + at, _pair(low, high), mask=inside)


def one_shot(
    part: torch.Tensor,
    peers: torch.Tensor,
    counts: torch.Tensor,
    rank: int,
    world: int,
    wide: int,
    residual: torch.Tensor | None = None,
    norm: Norm | None = None,
    pdl: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the sum over ranks of `part`, normed by `norm` after `residual` was added; the sum itself), [rows, dim].

    `part` is bfloat16 [rows, dim], and written over where there is no residual; with one, it may be the float32 parts
    [parts, rows, dim] of a product. `peers`: int64 [world], addresses of every rank's words as this one reaches them;
    `counts`: int32, a row each, never touched by anybody else; `wide`: words a row has room for.
    """
    rows, dim = part.shape[-2:]
    split = part.dim() == 3
    pairs = dim // 2
    pdl = between(part.device, rows) if pdl is None else pdl
    block = triton.next_power_of_2(pairs)
    out = part if residual is None else torch.empty_like(residual)
    total = out if residual is None else torch.empty_like(residual)
    one_shot_kernel[(rows,)](
        part.view(torch.int64) if split else _pairs(part),
        peers,
        counts,
        _pairs(out if residual is None else residual),
        _pairs(out if norm is None or norm.weight is None else norm.weight),
        _pairs(out),
        _pairs(total),
        pairs,
        rows * pairs,
        len(counts),
        wide,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        RANK=rank,
        WORLD=world,
        PARTS=part.shape[0] if split else 1,
        RESIDUAL=residual is not None,
        NORM=norm is not None,
        WEIGHT=norm is not None and norm.weight is not None,
        LATE=norm is not None and norm.late,
        BLOCK=block,
        PDL=pdl,
        num_warps=min(max(block // 128, 1), 16),
        launch_pdl=pdl > 0,
    )
    return out, total


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)
