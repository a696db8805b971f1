"""Attention of ragged rows with many queries over their pages.

A tile is some successive queries of one row with all query heads that share a KV head, so that K and V are read once
for them all. The grid depends on shapes alone: tiles find their row when they run, and those that have none fill
padding with zeros. Where the tiles are too few for the device, each row's history is split, and merged by a second
launch. Tiles with the longest histories come first, so that none is left running alone.
"""

# ruff: noqa: N803 - constants of a kernel are upper case

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import processors
from stepwell_kernels.paged.place import Tables
from stepwell_kernels.paged.sight import SEES, cap, first_seen
from stepwell_kernels.paged.step import Step

ROWS = 128
"""Rows whose places are read at once."""
SPLITS = 32
"""Most parts of a history."""
SPLIT = 512
"""Tokens below which a part is not worth merging."""
LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a kernel cuts its work."""

    queries: int
    tokens: int
    warps: int
    stages: int


def paged_prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    step: Step,
    scale: float,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from a step's prompts, `query` [tokens behind the decodes, heads, dim], to their pages.

    Padding reads nothing and gives zeros. Answers [tokens, heads, value_dim].
    """
    tokens, heads, dim = query.shape
    kv_heads, value_dim = values.shape[2:]
    if out is None:
        out = torch.empty((tokens, heads, value_dim), dtype=query.dtype, device=query.device)
    if not tokens:
        return out
    group = heads // kv_heads
    kind, sight = tables.sees
    hopper = USE_HOPPER and _hopper(query, keys, values, tables)
    blocks = HOPPER[max(dim, value_dim)] if hopper else _blocks(max(dim, value_dim), keys.dtype, group)
    each = blocks.queries // group
    tiles = tokens // each + step.shape.prompts + 1
    reach = tables.pages.shape[1] * tables.page_size if kind == "all" else sight + each
    splits = _splits(tiles * kv_heads, reach, query.device)
    parts, sums = out, out
    if splits > 1:
        parts = torch.empty((splits, tokens, heads, value_dim), dtype=torch.float32, device=query.device)
        sums = torch.empty((splits, tokens, heads), dtype=torch.float32, device=query.device)
    numbers = (step.slots, step.starts, step.counts, step.begins)
    scores = (out if sinks is None else sinks, scale if softcap is not None else scale * LOG2E, softcap or 0.0)
    sizes = (step.shape.decodes, step.shape.prompts, tokens, sight)
    strides = (query.stride(0), query.stride(1), out.stride(0), out.stride(1), tables.pages.stride(0))
    constants = {
        "SEES": SEES[kind],
        "SINKS": sinks is not None,
        "SOFTCAP": softcap is not None,
        "SPLIT": splits > 1,
        "PAGE_SIZE": tables.page_size,
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "DIM": dim,
        "VALUE_DIM": value_dim,
        "EACH": each,
        "BLOCK": blocks.tokens,
        "STAGES": blocks.stages,
        "ROWS": ROWS,
    }
    grid = (kv_heads, splits, tiles)
    if hopper:
        from stepwell_kernels.paged import hopper as kernels

        box = min(tables.page_size, blocks.tokens)
        sides = (kernels.boxes(keys, box), kernels.boxes(values, box))
        kernels.attend_tiles[grid](
            query, *sides, out, parts, sums, tables.pages, *numbers, *scores, *sizes, keys.shape[0] * keys.shape[1],
            *strides, **constants, BOX=box, num_warps=4,
        )  # fmt: skip
    else:
        _prefill[grid](
            query, keys, values, out, parts, sums, tables.pages, *numbers, *scores, *sizes, *strides, **constants,
            DIM_PADDED=max(16, triton.next_power_of_2(dim)), VALUE_PADDED=max(16, triton.next_power_of_2(value_dim)),
            QUERIES=blocks.queries, num_warps=blocks.warps,
        )  # fmt: skip
    if splits > 1:
        _merge[(heads, tokens)](
            out,
            parts,
            sums,
            step.begins,
            step.counts,
            out if sinks is None else sinks,
            splits,
            tokens,
            step.shape.decodes,
            step.shape.rows - 1,
            out.stride(0),
            out.stride(1),
            SINKS=sinks is not None,
            HEADS=heads,
            VALUE_DIM=value_dim,
            VALUE_PADDED=triton.next_power_of_2(value_dim),
            SPLITS=SPLITS,
            num_warps=4,
        )
    return out


USE_HOPPER = False
HOPPER = {64: Blocks(128, 128, 4, 2), 128: Blocks(128, 128, 4, 2), 256: Blocks(128, 64, 4, 2)}
"""By head dim."""


def _hopper(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: Tables) -> bool:
    """Whether the kernel for Hopper's own units takes these."""
    size, dims = tables.page_size, {keys.shape[3], values.shape[3]}
    return (
        query.device.type == "cuda"
        and torch.cuda.get_device_capability(query.device)[0] == 9
        and query.dtype in (torch.bfloat16, torch.float16)
        and dims <= HOPPER.keys()
        and size >= 8
        and size & (size - 1) == 0
        and query.shape[1] // keys.shape[2] <= 128
    )


def _blocks(dim: int, dtype: torch.dtype, group: int) -> Blocks:
    least = max(16, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Blocks(max(32, least), 32 if dim <= 128 else 16, 4, 2)
    if dim <= 128:
        return Blocks(max(128, least), 64, 8, 3)
    return Blocks(max(128, least), 32, 8, 2)


def _splits(programs: int, reach: int, device: torch.device) -> int:
    """Of each history, which is at most `reach`: as many as fill the device, where the tiles alone do not."""
    free = 2 * (processors(device) if device.type == "cuda" else 16) // programs
    return max(1, min(free, SPLITS, reach // SPLIT))


@triton.jit
def _span(
    q, keys, values, table, low, high, first, last, place, sight, scale, softcap, top, mass, found,
    MASKED: tl.constexpr, SEES: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr, KV_HEADS: tl.constexpr,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens [first, last), in blocks; `place` of each query, which sees none outside [low, high)."""
    dims = tl.arange(0, DIM_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    tokens = first + tl.arange(0, BLOCK)
    page = tl.load(table + tokens // PAGE_SIZE, (tokens >= low) & (tokens < last), -1)
    for at in tl.range(first, last, BLOCK, num_stages=STAGES):
        tokens = at + tl.arange(0, BLOCK)
        real = page >= 0
        places = page.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE
        ahead = tokens + BLOCK
        page = tl.load(table + ahead // PAGE_SIZE, (ahead >= low) & (ahead < last), -1)
        pointers = keys + (places * (KV_HEADS * DIM))[:, None] + dims[None, :]
        if MASKED:
            k = tl.load(pointers, real[:, None] & (dims[None, :] < DIM), 0.0)
        elif DIM < DIM_PADDED:
            k = tl.load(pointers, dims[None, :] < DIM, 0.0)
        else:
            k = tl.load(pointers)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            scores = cap(scores, softcap) * 1.4426950408889634
        if MASKED:
            seen = real[None, :] & (tokens[None, :] <= place[:, None])
            if SEES > 0:
                seen &= tokens[None, :] >= first_seen(place, sight, SEES)[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        mass = mass * fade + tl.sum(weights, 1)
        pointers = values + (places * (KV_HEADS * VALUE_DIM))[:, None] + value_dims[None, :]
        if MASKED:
            v = tl.load(pointers, real[:, None] & (value_dims[None, :] < VALUE_DIM), 0.0)
        elif VALUE_DIM < VALUE_PADDED:
            v = tl.load(pointers, value_dims[None, :] < VALUE_DIM, 0.0)
        else:
            v = tl.load(pointers)
        found = tl.dot(weights.to(v.dtype), v, found * fade[:, None], input_precision="ieee")
        top = higher
    return top, mass, found


@triton.jit
def _tile(begins, counts, decodes, prompts, tile, EACH: tl.constexpr, ROWS: tl.constexpr):
    """Row of a tile, and its number in the row; the row behind the last is the padding.

    Row r's tiles start at begin // EACH + r, which leaves room for those of the rows before it.
    """
    last = decodes + prompts - 1
    used = tl.load(begins + last) + tl.load(counts + last) - decodes
    row = -1
    for at in range(0, prompts + 1, ROWS):
        index = at + tl.arange(0, ROWS)
        begin = tl.load(begins + decodes + index, index < prompts, used + decodes) - decodes
        row += tl.sum(((begin // EACH + index <= tile) & (index <= prompts)).to(tl.int32))
    begin = tl.load(begins + decodes + row, row < prompts, used + decodes) - decodes
    return row, begin, tile - (begin // EACH + row)


@triton.jit(do_not_specialize=["scale", "softcap", "decodes", "prompts", "tokens", "sight"])
def _prefill(
    query,
    keys,
    values,
    out,
    parts,
    sums,
    pages,
    slots,
    starts,
    counts,
    begins,
    sinks,
    scale,
    softcap,
    decodes,
    prompts,
    tokens,
    sight,
    q_token,
    q_head,
    out_token,
    out_head,
    table_line,
    SEES: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    EACH: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
):
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    row, begin, number = _tile(begins, counts, decodes, prompts, tl.num_programs(2) - 1 - tl.program_id(2), EACH, ROWS)
    count = tl.load(counts + decodes + row, row < prompts, 0)
    count = tl.where(row < prompts, count, tokens - begin)
    if number * EACH >= count:
        return

    # queries of a tile   | token 0: head 0 1 2 | token 1: head 0 1 2 | ... | spare |
    queries = tl.arange(0, QUERIES)
    token = number * EACH + queries // GROUP
    heads = kv_head * GROUP + queries % GROUP
    flat = (begin + token).to(tl.int64)
    dims = tl.arange(0, DIM_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    own = (queries < EACH * GROUP) & (token < count)
    real = own[:, None] & (value_dims[None, :] < VALUE_DIM)
    target = out + flat[:, None] * out_token + heads[:, None] * out_head + value_dims[None, :]
    if row == prompts:
        if split == 0:
            tl.store(target, tl.zeros([QUERIES, VALUE_PADDED], tl.float32), real)
        return

    start = tl.load(starts + decodes + row)
    place = start + token
    earliest = start + number * EACH
    latest = start + tl.minimum((number + 1) * EACH, count) - 1
    low = first_seen(earliest, sight, SEES)
    high = latest + 1
    first = low // BLOCK * BLOCK
    last = high
    if SPLIT:
        share = tl.cdiv(tl.cdiv(high - first, tl.num_programs(1)), BLOCK) * BLOCK
        first += split * share
        last = tl.minimum(first + share, high)
    # tokens of a history   first | edge | full_low | seen by all queries | full_high | edge | last
    full_low = tl.minimum(tl.maximum(tl.cdiv(first_seen(latest, sight, SEES), BLOCK) * BLOCK, first), last)
    full_high = tl.maximum(tl.minimum((earliest + 1) // BLOCK * BLOCK, last), full_low)

    q = tl.load(
        query + flat[:, None] * q_token + heads[:, None] * q_head + dims[None, :],
        own[:, None] & (dims[None, :] < DIM),
        0.0,
    )
    table = pages + tl.load(slots + decodes + row).to(tl.int64) * table_line
    keys += kv_head * DIM
    values += kv_head * VALUE_DIM
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
    if SEES > 0:
        top, mass, found = _span(
            q, keys, values, table, low, high, first, full_low, place, sight, scale, softcap, top, mass, found,
            True, SEES, SOFTCAP, PAGE_SIZE, KV_HEADS, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED, BLOCK, STAGES,
        )  # fmt: skip
    top, mass, found = _span(
        q, keys, values, table, low, high, full_low, full_high, place, sight, scale, softcap, top, mass, found,
        False, SEES, SOFTCAP, PAGE_SIZE, KV_HEADS, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED, BLOCK, STAGES,
    )  # fmt: skip
    top, mass, found = _span(
        q, keys, values, table, low, high, full_high, last, place, sight, scale, softcap, top, mass, found,
        True, SEES, SOFTCAP, PAGE_SIZE, KV_HEADS, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED, BLOCK, STAGES,
    )  # fmt: skip

    if SPLIT:
        spot = (split * tokens + flat) * (KV_HEADS * GROUP) + heads
        found = found / tl.where(mass > 0, mass, 1.0)[:, None]
        tl.store(parts + spot[:, None] * VALUE_DIM + value_dims[None, :], found, real)
        tl.store(sums + spot, top + tl.log2(mass), own)
        return
    if SINKS:
        sink = tl.load(sinks + heads, own, 0.0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        mass = mass * fade + tl.exp2(sink - higher)
        found *= fade[:, None]
    tl.store(target, found / tl.where(mass > 0, mass, 1.0)[:, None], real)


@triton.jit(do_not_specialize=["splits", "tokens", "decodes", "last"])
def _merge(
    out,
    parts,
    sums,
    begins,
    counts,
    sinks,
    splits,
    tokens,
    decodes,
    last,
    out_token,
    out_head,
    SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Weigh the parts of one token and head by their mass; padding, which no part has written, keeps its zeros."""
    token = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    if token >= tl.load(begins + last) + tl.load(counts + last) - decodes:
        return
    value_dims = tl.arange(0, VALUE_PADDED)
    split = tl.arange(0, SPLITS)
    spot = (split * tokens + token) * HEADS + head
    own = tl.load(sums + spot, split < splits, float("-inf"))
    part = tl.load(
        parts + spot[:, None] * VALUE_DIM + value_dims[None, :],
        (split[:, None] < splits) & (value_dims[None, :] < VALUE_DIM),
        0.0,
    )
    top = tl.max(own, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        top = tl.maximum(top, sink)
    weights = tl.exp2(own - top)
    mass = tl.sum(weights, 0)
    if SINKS:
        mass += tl.exp2(sink - top)
    found = tl.sum(part * weights[:, None], 0) / mass
    tl.store(out + token * out_token + head * out_head + value_dims, found, value_dims < VALUE_DIM)
