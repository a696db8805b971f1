"""Attention of ragged rows with many queries over their pages, as Hopper's own units want it.

One warp streams pages into shared memory through the copy engine; two warpgroups, of 64 queries each, multiply. While
a warpgroup weighs the scores of one block, its matrix unit already multiplies the next block's keys and the last
block's values, and the two warpgroups fill each other's gaps. Everything else is as in `prefill`.
"""

# ruff: noqa: N803, N806, SIM113 - constants of a kernel are upper case; it knows no enumerate

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from stepwell_kernels.paged.sight import cap, first_seen

BOXES = gl.NVMMASharedLayout(128, 16, 2)
"""How they lie in shared memory."""


def boxes(pages: torch.Tensor, tokens: int) -> TensorDescriptor:
    """How the copy engine takes so many successive tokens of one head from [pages, page_size, kv_heads, dim]."""
    _, _, heads, dim = pages.shape
    flat = pages.view(-1, heads * dim)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [tokens, dim], BOXES)


@gluon.jit
def _stream(
    keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, table, first, last, outside, kv_head,
    PAGE_SIZE: gl.constexpr, BOX: gl.constexpr, DIM: gl.constexpr, VALUE_DIM: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the blocks of [first, last); a token without a page is `outside`, where the copy engine gives zeros."""
    number = 0
    for at in range(first, last, BLOCK):
        stage = number % STAGES
        parity = (number // STAGES & 1) ^ 1
        mbarrier.wait(k_empty.index(stage), parity)
        mbarrier.expect(k_full.index(stage), BLOCK * DIM * 2)
        for box in gl.static_range(BLOCK // BOX):
            token = at + box * BOX
            page = gl.load(table + token // PAGE_SIZE, token < last, -1)
            spot = gl.where(page < 0, outside, page * PAGE_SIZE + token % PAGE_SIZE)
            tile = k_tiles.index(stage).slice(box * BOX, BOX)
            tma.async_copy_global_to_shared(keys, [spot, kv_head * DIM], k_full.index(stage), tile)
        mbarrier.wait(v_empty.index(stage), parity)
        mbarrier.expect(v_full.index(stage), BLOCK * VALUE_DIM * 2)
        for box in gl.static_range(BLOCK // BOX):
            token = at + box * BOX
            page = gl.load(table + token // PAGE_SIZE, token < last, -1)
            spot = gl.where(page < 0, outside, page * PAGE_SIZE + token % PAGE_SIZE)
            tile = v_tiles.index(stage).slice(box * BOX, BOX)
            tma.async_copy_global_to_shared(values, [spot, kv_head * VALUE_DIM], v_full.index(stage), tile)
        number += 1


@gluon.jit
def _clear(tile, at, low, high, BLOCK: gl.constexpr, DIM: gl.constexpr, ROWS: gl.constexpr):
    """Zero what lies outside [low, high): a weight of zero times NaN would be NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (DIM // 8), DIM // 8], [4, 1], [1, 0])
    for part in gl.static_range(BLOCK // ROWS):
        rows = tile.slice(part * ROWS, ROWS)
        token = at + part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        held = rows.load(LAYOUT)
        rows.store(gl.where(((token >= low) & (token < high))[:, None], held, gl.zeros_like(held)))
    fence_async_shared()


@gluon.jit
def _weigh(
    scores, top, mass, at, place, low, full_low, full_high, high, sight, scale, softcap,
    SEES: gl.constexpr, SOFTCAP: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Weights of a block's scores beside the highest so far, and by how much what was found before fades."""
    scores = scores * scale
    if SOFTCAP:
        scores = cap(scores, softcap) * 1.4426950408889634
    if (at < full_low) | (at + BLOCK > full_high):
        token = at + gl.arange(0, BLOCK, gl.SliceLayout(0, scores.type.layout))
        seen = (token[None, :] <= place[:, None]) & ((token >= low) & (token < high))[None, :]
        if SEES > 0:
            seen &= token[None, :] >= first_seen(place, sight, SEES)[:, None]
        scores = gl.where(seen, scores, float("-inf"))
    higher = gl.maximum(top, gl.max(scores, 1))
    base = gl.where(higher == float("-inf"), 0.0, higher)
    weights = gl.exp2(scores - base[:, None])
    fade = gl.exp2(top - base)
    return weights, higher, mass * fade + gl.sum(weights, 1), fade


@gluon.jit
def _clean(tiles, cleared, stage, at, low, high, HALF: gl.constexpr, BLOCK: gl.constexpr, VALUE_DIM: gl.constexpr):
    """Where a block is not all of this history, the first half clears the rest for both."""
    if (at < low) | (at + BLOCK > high):
        done = cleared.index((at + BLOCK > high).to(gl.int32))
        if HALF == 0:
            _clear(tiles.index(stage), at, low, high, BLOCK, VALUE_DIM, 32)
            gl.thread_barrier()
            mbarrier.arrive(done, count=1)
        else:
            mbarrier.wait(done, 0)


@gluon.jit
def _multiply(
    q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, cleared,
    query, out, parts, sums, sinks, scale, softcap, sight, prompts, tokens,
    row, start, begin, number, count, first, last, full_low, full_high, low, high, kv_head, split,
    q_token, q_head, out_token, out_head,
    HALF: gl.constexpr, SEES: gl.constexpr, SINKS: gl.constexpr, SOFTCAP: gl.constexpr, SPLIT: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, VALUE_DIM: gl.constexpr, EACH: gl.constexpr,
    BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attend from one half of the tile's queries to the blocks that are streamed."""
    DTYPE: gl.constexpr = q_tiles.dtype
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (DIM // 8), DIM // 8], [4, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    FOUND: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, VALUE_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, FOUND, 2)
    LINE: gl.constexpr = gl.SliceLayout(1, SCORES)
    TARGET: gl.constexpr = gl.SliceLayout(1, FOUND)

    index = HALF * 64 + gl.arange(0, 64, gl.SliceLayout(1, LOAD))
    token = number * EACH + index // GROUP
    own = (index < EACH * GROUP) & (token < count) & (row < prompts)
    flat = (begin + token).to(gl.int64) * q_token + (kv_head * GROUP + index % GROUP) * q_head
    q_tile = q_tiles.index(HALF)
    q_tile.store(
        gl.load(query + flat[:, None] + gl.arange(0, DIM, gl.SliceLayout(0, LOAD))[None, :], own[:, None], 0.0)
    )
    fence_async_shared()
    gl.thread_barrier()

    place = start + number * EACH + (HALF * 64 + gl.arange(0, 64, LINE)) // GROUP
    top = gl.full([64], float("-inf"), gl.float32, LINE)
    mass = gl.full([64], 0.0, gl.float32, LINE)
    found = gl.full([64, VALUE_DIM], 0.0, gl.float32, FOUND)
    blank = gl.full([64, BLOCK], 0.0, gl.float32, SCORES)
    blocks = gl.cdiv(gl.maximum(last - first, 0), BLOCK)
    if blocks > 0:
        mbarrier.wait(k_full.index(0), 0)
        scores = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(k_empty.index(0), count=1)
        weights, top, mass, fade = _weigh(
            scores, top, mass, first, place, low, full_low, full_high, high, sight, scale, softcap, SEES, SOFTCAP, BLOCK
        )
        weights = gl.convert_layout(weights.to(DTYPE), WEIGHTS)
        # while block n's scores are weighed, block n - 1's values are added up
        for n in range(1, blocks):
            at = first + n * BLOCK
            stage = n % STAGES
            before = (n - 1) % STAGES
            mbarrier.wait(k_full.index(stage), n // STAGES & 1)
            scores_ahead = warpgroup_mma(
                q_tile, k_tiles.index(stage).permute((1, 0)), blank, use_acc=False, is_async=True
            )
            mbarrier.wait(v_full.index(before), (n - 1) // STAGES & 1)
            _clean(v_tiles, cleared, before, at - BLOCK, low, high, HALF, BLOCK, VALUE_DIM)
            found_ahead = warpgroup_mma(weights, v_tiles.index(before), found, is_async=True)
            scores = warpgroup_mma_wait(1, deps=(scores_ahead,))
            mbarrier.arrive(k_empty.index(stage), count=1)
            fresh, top, mass, fade = _weigh(
                scores, top, mass, at, place, low, full_low, full_high, high, sight, scale, softcap,
                SEES, SOFTCAP, BLOCK,
            )  # fmt: skip
            found = warpgroup_mma_wait(0, deps=(found_ahead,))
            mbarrier.arrive(v_empty.index(before), count=1)
            found = found * gl.convert_layout(fade, TARGET)[:, None]
            weights = gl.convert_layout(fresh.to(DTYPE), WEIGHTS)
        stage = (blocks - 1) % STAGES
        mbarrier.wait(v_full.index(stage), (blocks - 1) // STAGES & 1)
        _clean(v_tiles, cleared, stage, first + (blocks - 1) * BLOCK, low, high, HALF, BLOCK, VALUE_DIM)
        found_ahead = warpgroup_mma(weights, v_tiles.index(stage), found, is_async=True)
        found = warpgroup_mma_wait(0, deps=(found_ahead,))

    index = HALF * 64 + gl.arange(0, 64, TARGET)
    token = number * EACH + index // GROUP
    heads = kv_head * GROUP + index % GROUP
    own = (index < EACH * GROUP) & (token < count)
    flat = (begin + token).to(gl.int64)
    dims = gl.arange(0, VALUE_DIM, gl.SliceLayout(0, FOUND))
    top = gl.convert_layout(top, TARGET)
    mass = gl.convert_layout(mass, TARGET)
    if SPLIT:
        spot = (split * tokens + flat) * (KV_HEADS * GROUP) + heads
        found = found / gl.where(mass > 0, mass, 1.0)[:, None]
        own &= row < prompts
        gl.store(parts + spot[:, None] * VALUE_DIM + dims[None, :], found, own[:, None])
        gl.store(sums + spot, top + gl.log2(mass), own)
        own &= False
    if SINKS:
        sink = gl.load(sinks + heads, own, 0.0).to(gl.float32) * 1.4426950408889634
        higher = gl.maximum(top, sink)
        fade = gl.exp2(top - higher)
        mass = mass * fade + gl.exp2(sink - higher)
        found = found * fade[:, None]
    found = found / gl.where(mass > 0, mass, 1.0)[:, None]
    gl.store(
        out + flat[:, None] * out_token + heads[:, None] * out_head + dims[None, :],
        found.to(out.dtype.element_ty),
        own[:, None],
    )


@gluon.jit(do_not_specialize=["scale", "softcap", "decodes", "prompts", "tokens", "sight", "outside"])
def attend_tiles(
    query, keys, values, out, parts, sums, pages, slots, starts, counts, begins, sinks,
    scale, softcap, decodes, prompts, tokens, sight, outside,
    q_token, q_head, out_token, out_head, table_line,
    SEES: gl.constexpr, SINKS: gl.constexpr, SOFTCAP: gl.constexpr, SPLIT: gl.constexpr,
    PAGE_SIZE: gl.constexpr, BOX: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    VALUE_DIM: gl.constexpr, EACH: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr,
    COPIERS: gl.constexpr = 1, REGISTERS: gl.constexpr = 224,
):  # fmt: skip
    """One tile of 128 queries; `keys` and `values` are descriptors of [pages * page_size, kv_heads * dim]."""
    kv_head = gl.program_id(0)
    split = gl.program_id(1)
    tile = gl.num_programs(2) - 1 - gl.program_id(2)

    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    end = decodes + prompts - 1
    used = gl.load(begins + end) + gl.load(counts + end) - decodes
    row = -1
    for at in range(0, prompts + 1, ROWS):
        index = at + gl.arange(0, ROWS, LINE)
        begin = gl.load(begins + decodes + index, index < prompts, used + decodes) - decodes
        row += gl.sum(((begin // EACH + index <= tile) & (index <= prompts)).to(gl.int32), 0)
    real = row < prompts
    begin = gl.load(begins + decodes + row, real, used + decodes) - decodes
    number = tile - (begin // EACH + row)
    count = gl.load(counts + decodes + row, real, 0)
    count = gl.where(real, count, tokens - begin)
    start = gl.load(starts + decodes + row, real, 0)
    slot = gl.load(slots + decodes + row, real, 0)

    earliest = start + number * EACH
    latest = start + gl.minimum((number + 1) * EACH, count) - 1
    low = first_seen(earliest, sight, SEES)
    high = latest + 1
    first = low // BLOCK * BLOCK
    last = gl.where(real & (number * EACH < count), high, first)
    if SPLIT:
        share = gl.cdiv(gl.cdiv(high - first, gl.num_programs(1)), BLOCK) * BLOCK
        first += split * share
        last = gl.minimum(first + share, last)
    full_low = first_seen(latest, sight, SEES)
    full_high = earliest + 1

    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_tiles = gl.allocate_shared_memory(query.dtype.element_ty, [2, 64, DIM], TILE)
    k_tiles = gl.allocate_shared_memory(query.dtype.element_ty, [STAGES, BLOCK, DIM], TILE)
    v_tiles = gl.allocate_shared_memory(query.dtype.element_ty, [STAGES, BLOCK, VALUE_DIM], TILE)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    cleared = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=2)
    mbarrier.init(cleared.index(0), count=1)
    mbarrier.init(cleared.index(1), count=1)
    fence_async_shared()

    table = pages + slot.to(gl.int64) * table_line
    gl.warp_specialize(
        [
            (_multiply, (
                q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, cleared,
                query, out, parts, sums, sinks, scale, softcap, sight, prompts, tokens,
                row, start, begin, number, count, first, last, full_low, full_high, low, high, kv_head, split,
                q_token, q_head, out_token, out_head,
                0, SEES, SINKS, SOFTCAP, SPLIT, KV_HEADS, GROUP, DIM, VALUE_DIM, EACH, BLOCK, STAGES,
            )),
            (_multiply, (
                q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, cleared,
                query, out, parts, sums, sinks, scale, softcap, sight, prompts, tokens,
                row, start, begin, number, count, first, last, full_low, full_high, low, high, kv_head, split,
                q_token, q_head, out_token, out_head,
                1, SEES, SINKS, SOFTCAP, SPLIT, KV_HEADS, GROUP, DIM, VALUE_DIM, EACH, BLOCK, STAGES,
            )),
            (_stream, (
                keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, table, first, last, outside, kv_head,
                PAGE_SIZE, BOX, DIM, VALUE_DIM, BLOCK, STAGES,
            )),
        ],
        [4, COPIERS],
        [REGISTERS, 24],
    )  # fmt: skip


def compile_smallest(device: torch.device) -> None:
    """Compile the smallest of these kernels; it is not launched."""
    query = torch.empty((1, 1, 64), dtype=torch.bfloat16, device=device)
    pages = torch.empty((1, 64, 1, 64), dtype=torch.bfloat16, device=device)
    number = torch.empty(1, dtype=torch.int32, device=device)
    sides = (boxes(pages, 64), boxes(pages, 64))
    attend_tiles.warmup(
        query, *sides, query, query, query, number, number, number, number, number, query, 1.0, 0.0, 0, 1, 1, 0, 64,
        64, 64, 64, 64, 1, SEES=0, SINKS=False, SOFTCAP=False, SPLIT=False, PAGE_SIZE=64, KV_HEADS=1, GROUP=1, DIM=64,
        VALUE_DIM=64, EACH=128, BLOCK=64, STAGES=2, ROWS=128, BOX=64, num_warps=4, grid=(1, 1, 1),
    )  # fmt: skip
