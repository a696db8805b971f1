"""A sum over ranks in one kernel: every rank writes its part into the memory of all others and adds up what arrives.

Each word of eight bytes carries two numbers and the count of the sum that they belong to, so a reader knows of each
word by itself whether it has come: nothing waits for a fence, nor for a flag behind the data. Counts live in device
memory, one a row, so that a captured graph goes on counting. Two sets of words alternate: a rank that is at a row's sum
n + 1 has had everybody's part of sum n, so everybody has begun that one and is done with reading sum n - 1.
"""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import scaled
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
def one_shot_kernel(
    part,
    peers,
    counts,
    residual,
    weight,
    out,
    total,
    pairs,
    rows,
    wide,
    eps,
    offset,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    LATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program; all tensors are pairs of bfloat16. `peers`: where each rank's words begin.

    Words are [2, WORLD, rows, wide]: of the set, from which rank, of which row.
    """
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < pairs
    count = tl.load(counts + row) + 1
    mine = tl.load(part + row * pairs + at, mask=inside, other=0)
    stamp = count.to(tl.int64) << 32
    word = (mine.to(tl.int64) & 0xFFFFFFFF) | stamp
    begin = (count & 1) * WORLD * rows * wide + row * wide
    for rank in tl.static_range(WORLD):
        if rank != RANK:
            theirs = tl.load(peers + rank).to(tl.pointer_type(tl.int64))
            tl.store(theirs + begin + RANK * rows * wide + at, word, mask=inside)
    own = tl.load(peers + RANK).to(tl.pointer_type(tl.int64))
    low = tl.zeros((BLOCK,), tl.float32)
    high = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(WORLD):
        pair = mine
        if rank != RANK:
            source = own + begin + rank * rows * wide + at
            came = tl.load(source, mask=inside, other=0, volatile=True)
            late = tl.sum((inside & ((came >> 32) != count)).to(tl.int32), 0)
            while late > 0:
                came = tl.load(source, mask=inside, other=0, volatile=True)
                late = tl.sum((inside & ((came >> 32) != count)).to(tl.int32), 0)
            pair = came.to(tl.int32)
        low += _low(pair)
        high += _high(pair)
    tl.store(counts + row, count)
    if RESIDUAL:
        before = tl.load(residual + row * pairs + at, mask=inside, other=0)
        low = _rounded(low + _low(before))
        high = _rounded(high + _high(before))
        tl.store(total + row * pairs + at, _pair(low, high), mask=inside)
    if NORM:
        by_low = 0.0
        by_high = 0.0
        if WEIGHT:
            by = tl.load(weight + at, mask=inside, other=0)
            by_low = _low(by) + offset
            by_high = _high(by) + offset
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the sum over ranks of `part` [rows, dim] bfloat16, normed by `norm` after `residual` was added; the sum itself).

    `part` is written over where there is neither. `peers`: int64 [world], addresses of every rank's words as this one
    reaches them; `counts`: int32, a row each, never touched by anybody else; `wide`: words a row has room for.
    """
    rows, dim = part.shape
    pairs = dim // 2
    block = triton.next_power_of_2(pairs)
    out = part if residual is None else torch.empty_like(part)
    total = out if residual is None else torch.empty_like(part)
    one_shot_kernel[(rows,)](
        _pairs(part),
        peers,
        counts,
        _pairs(part if residual is None else residual),
        _pairs(part if norm is None or norm.weight is None else norm.weight),
        _pairs(out),
        _pairs(total),
        pairs,
        len(counts),
        wide,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        RANK=rank,
        WORLD=world,
        RESIDUAL=residual is not None,
        NORM=norm is not None,
        WEIGHT=norm is not None and norm.weight is not None,
        LATE=norm is not None and norm.late,
        BLOCK=block,
        num_warps=min(max(block // 128, 1), 16),
    )
    return out, total


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)
