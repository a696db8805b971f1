"""Attention of tiles of queries over their pages, for any device; and the merging of a split history's parts."""

# ruff: noqa: N803 - constants of a kernel are upper case

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_kernels.paged.sight import cap, first_seen


@triton.jit
def _side(own, dims, real, MASKED: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr):
    """K or V of a block of tokens, whose own lie at `own`."""
    if MASKED:
        found = tl.load(own + dims[None, :], real[:, None] & (dims[None, :] < DIM), 0.0)
    elif DIM < PADDED:
        found = tl.load(own + dims[None, :], dims[None, :] < DIM, 0.0)
    else:
        found = tl.load(own + dims[None, :])
    return found


@triton.jit
def _span(
    q, q_rest, keys, values, table, low, high, first, last, place, sight, scale, softcap, top, mass, found,
    MASKED: tl.constexpr, SEES: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, DIM_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    LATENT: tl.constexpr, FIRST: tl.constexpr, REST_PADDED: tl.constexpr,
    KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens [first, last), in blocks; `place` of each query, which sees none outside [low, high)."""
    dims = tl.arange(0, DIM_PADDED)
    rest = tl.arange(0, REST_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    tokens = first + tl.arange(0, BLOCK)
    page = tl.load(table + tokens // PAGE_SIZE, (tokens >= low) & (tokens < last), -1)
    for at in tl.range(first, last, BLOCK, num_stages=STAGES):
        tokens = at + tl.arange(0, BLOCK)
        real = page >= 0
        places = page.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE
        ahead = tokens + BLOCK
        page = tl.load(table + ahead // PAGE_SIZE, (ahead >= low) & (ahead < last), -1)
        own = keys + (places * KEY_TOKEN)[:, None]
        k = _side(own, dims, real, MASKED, FIRST, DIM_PADDED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if LATENT:
            k_rest = _side(own + FIRST, rest, real, MASKED, DIM - FIRST, REST_PADDED)
            scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
        scores *= scale
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
        if LATENT:
            v = k
        else:
            v = _side(values + (places * VALUE_TOKEN)[:, None], value_dims, real, MASKED, VALUE_DIM, VALUE_PADDED)
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
def attend_tiles(
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
    LATENT: tl.constexpr,
    FIRST: tl.constexpr,
    REST_PADDED: tl.constexpr,
    KEY_TOKEN: tl.constexpr,
    KEY_HEAD: tl.constexpr,
    VALUE_TOKEN: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    EACH: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One tile, or one part of its history: see `prefill`."""
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

    asked = query + flat[:, None] * q_token + heads[:, None] * q_head
    q = tl.load(asked + dims[None, :], own[:, None] & (dims[None, :] < FIRST), 0.0)
    q_rest = q
    if LATENT:
        rest = tl.arange(0, REST_PADDED)
        q_rest = tl.load(asked + FIRST + rest[None, :], own[:, None] & (rest[None, :] < DIM - FIRST), 0.0)
    table = pages + tl.load(slots + decodes + row).to(tl.int64) * table_line
    keys += kv_head * KEY_HEAD
    values += kv_head * VALUE_HEAD
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
    if SEES > 0:
        top, mass, found = _span(
            q, q_rest, keys, values, table, low, high, first, full_low, place, sight, scale, softcap, top, mass, found,
            True, SEES, SOFTCAP, PAGE_SIZE, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED,
            LATENT, FIRST, REST_PADDED, KEY_TOKEN, VALUE_TOKEN, BLOCK, STAGES,
        )  # fmt: skip
    top, mass, found = _span(
        q, q_rest, keys, values, table, low, high, full_low, full_high, place, sight, scale, softcap, top, mass, found,
        False, SEES, SOFTCAP, PAGE_SIZE, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED,
        LATENT, FIRST, REST_PADDED, KEY_TOKEN, VALUE_TOKEN, BLOCK, STAGES,
    )  # fmt: skip
    top, mass, found = _span(
        q, q_rest, keys, values, table, low, high, full_high, last, place, sight, scale, softcap, top, mass, found,
        True, SEES, SOFTCAP, PAGE_SIZE, DIM, VALUE_DIM, DIM_PADDED, VALUE_PADDED,
        LATENT, FIRST, REST_PADDED, KEY_TOKEN, VALUE_TOKEN, BLOCK, STAGES,
    )  # fmt: skip

    if SPLIT:
        spot = (split * tokens + flat) * (KV_HEADS * GROUP) + heads
        found = found / tl.where(mass > 0, mass, 1.0)[:, None]
        tl.store(parts + spot[:, None] * VALUE_DIM + value_dims[None, :], found, real)
        tl.store(sums + spot, top + tl.log2(tl.where(mass > 0, mass, 1.0)), own)
        return
    if SINKS:
        sink = tl.load(sinks + heads, own, 0.0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        mass = mass * fade + tl.exp2(sink - higher)
        found *= fade[:, None]
    tl.store(target, found / tl.where(mass > 0, mass, 1.0)[:, None], real)


@triton.jit(do_not_specialize=["splits", "tokens", "decodes", "last"])
def merge(
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
