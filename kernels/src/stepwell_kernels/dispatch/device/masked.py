"""Products of each expert's filled rows with its weights; rows that are not filled cost nothing.

A program has a tile of one expert's answers, and is done at once where its rows are behind the last filled one; those
that read the same weights run next to each other. Counts are read when it runs, so a captured graph follows them.
"""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 64, 128, 64
"""A tile, and how much of the inner dimension it takes at a time; a run of numbers with one scale is two of these."""
RUN = 128


@triton.jit
def masked_product_kernel(
    x,
    counts,
    weight,
    bias,
    scales,
    out,
    room,
    inner,
    outer,
    by_expert,
    by_outer,
    by_inner,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    RUN: tl.constexpr,
):
    """`x` [experts, room, inner] and `out` [experts, room, outer] are contiguous; a weight has strides `by_*`."""
    expert = tl.program_id(2).to(tl.int64)
    count = tl.load(counts + expert).to(tl.int32)
    first = tl.program_id(0) * ROWS
    if first >= count:
        return
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    filled, inside = row < count, column < outer
    at = expert * room + row
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, inner, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        deep = depth < inner
        some = tl.load(x + at[:, None] * inner + depth[None, :], mask=filled[:, None] & deep[None, :], other=0.0)
        there = weight + expert * by_expert + depth[:, None].to(tl.int64) * by_inner + column[None, :] * by_outer
        its = tl.load(there, mask=deep[:, None] & inside[None, :], other=0.0)
        part = tl.dot(some.to(its.dtype), its, input_precision="ieee")
        if SCALED:
            part *= tl.load(scales + at * (inner // RUN) + begin // RUN, mask=filled, other=0.0)[:, None]
        total += part
    if BIASED:
        total += tl.load(bias + expert * outer + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + at[:, None] * outer + column[None, :],
        total.to(out.dtype.element_ty),
        mask=filled[:, None] & inside[None, :],
    )


def masked_product(
    x: torch.Tensor,
    counts: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """[experts, room, outer]: the first `counts[e]` rows of each expert times its `weight` [experts, inner, outer].

    `scales` [experts, room, inner / 128]: of tokens in eight bits.
    """
    experts, room, inner = x.shape
    outer = weight.shape[2]
    out = torch.empty((experts, room, outer), dtype=weight.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows = min(ROWS, max(16, triton.next_power_of_2(room)))
    masked_product_kernel[(triton.cdiv(room, rows), triton.cdiv(outer, COLUMNS), experts)](
        x.contiguous(),
        counts,
        weight,
        weight if bias is None else bias.contiguous(),
        weight if scales is None else scales.contiguous(),
        out,
        room,
        inner,
        outer,
        weight.stride(0),
        weight.stride(2),
        weight.stride(1),
        BIASED=bias is not None,
        SCALED=scales is not None,
        ROWS=rows,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        RUN=RUN,
        num_warps=4,
        num_stages=4,
    )
    return out
