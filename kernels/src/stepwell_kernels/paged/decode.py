"""Attention of rows with one query each over their pages, split along the history.

Each program takes a piece of one row's history, for one KV head and all query heads that share it. The grid depends on
shapes alone, as a CUDA graph wants it; how long a piece is, programs work out from the rows' lengths when they run:
about an even share of all tokens, so that rows of differing lengths keep the device evenly busy. The program of a row
that ends last merges the row's pieces, so one launch does it all.
"""

# ruff: noqa: N803 - constants of a kernel are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import dependent, early, processors, waited
from stepwell_kernels.paged.place import Tables
from stepwell_kernels.paged.sides import Sides
from stepwell_kernels.paged.sight import SEES, cap, first_seen

LEAST = 256
"""Tokens below which a piece is not worth a program of its own."""
WAVES = 2
"""Programs for each multiprocessor: as many as run at once."""
FINE = 2
"""So many times as many where rows are many: whoever is done early takes another piece."""
FEW = 8
"""Rows that are not many."""
EVEN = 110
"""Percent of an even share that the longest piece may have where all pieces run at once."""
LOG2E = 1.4426950408889634


class Scratch:
    """Memory of the pieces of split rows; for calls one after another on one stream, of any layer that fits."""

    def __init__(self, device: torch.device | str, rows: int, heads: int, kv_heads: int, value_dim: int) -> None:
        """Fits calls of up to so many rows and heads, of at least so many KV heads."""
        device = torch.device(device)
        self.processors = processors(device) if device.type == "cuda" else 4
        pieces = rows + self.share(rows, kv_heads)
        self.parts = torch.empty(pieces * heads * value_dim, dtype=torch.float32, device=device)
        self.sums = torch.empty(pieces * heads, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(rows * heads, dtype=torch.int32, device=device)
        """By row and KV head: pieces that have ended; back at zero after each call."""

    def share(self, rows: int, kv_heads: int) -> int:
        """Pieces that all histories together are cut into, about, for each KV head."""
        return self.at_once(kv_heads, 1 if rows <= FEW else FINE)

    def at_once(self, kv_heads: int, times: int = 1) -> int:
        """Pieces for each KV head whose programs run at one time, so many times over."""
        return max(1, self.processors * WAVES * times // kv_heads)


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    slots: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
    out: torch.Tensor | None = None,
    *,
    scratch: Scratch,
) -> torch.Tensor:
    """Attend from `query` [rows, heads, dim], of tokens at `starts` whose K and V are in their pages already.

    A row of the idle slot reads nothing and gives zeros. Answers [rows, heads, value_dim].
    """
    rows, heads, dim = query.shape
    value_dim = values.shape[3]
    if out is None:
        out = torch.empty((rows, heads, value_dim), dtype=query.dtype, device=query.device)
    if not rows:
        return out
    sides = Sides.of(keys, values, heads)
    narrow = 2 if sides.latent else 1
    share = max(1, scratch.share(rows, sides.blocks) // narrow)
    pdl = dependent(query.device)
    kind, sight = tables.sees
    block, warps, stages = _blocks(max(dim, value_dim), keys.dtype, sides)
    _decode[(sides.blocks, rows + share)](
        query,
        keys,
        values,
        out,
        scratch.parts,
        scratch.sums,
        scratch.arrived,
        tables.pages,
        slots,
        starts,
        out if sinks is None else sinks,
        scale if softcap is not None else scale * LOG2E,
        softcap or 0.0,
        rows,
        share,
        max(1, scratch.at_once(sides.blocks) // narrow),
        tables.idle,
        sight,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        tables.pages.stride(0),
        SEES=SEES[kind],
        SINKS=sinks is not None,
        SOFTCAP=softcap is not None,
        PAGE_SIZE=tables.page_size,
        **sides.constants(),
        GROUP_PADDED=triton.next_power_of_2(sides.group),
        QUERIES=max(16, triton.next_power_of_2(sides.group)),
        BATCH=1 if sides.latent else 8,
        BLOCK=block,
        STAGES=stages,
        LEAST=LEAST,
        EVEN=EVEN,
        ROWS=32 if rows <= 64 else 128,
        PDL=pdl,
        num_warps=warps,
        launch_pdl=pdl > 0,
    )
    return out


def _blocks(dim: int, dtype: torch.dtype, sides: Sides) -> tuple[int, int, int]:
    """Tokens of a block, warps and stages.

    Microseconds a layer on an H200, bfloat16, 32 heads of 128 over 8, pages of 16, rows of cold K and V; in brackets
    the share of the bandwidth of a copy. WAVES x FINE is 2 x 2 unless said:

        rows x tokens     1 x 2k    1 x 16k    8 x 2k    8 x 16k   64 x 2k   64 x 8k   2 x 128k   72 x 4k   uneven
        64, 4, 4         13 (16)    33 (48)   25 (64)   134 (95)  133 (95)  499 (102)  260 (97)  349 (81)   96 (74)
        64, 4, 4; 2 x 4                                 135 (94)  150 (84)  510 (100)  264 (96)  323 (88)   96 (74)
        64, 4, 3; 3 x 1  14 (14)    38 (41)   26 (61)   136 (93)  154 (82)  581 (87)   266 (95)  314 (91)   91 (77)
        64, 4, 6; 1 x 1  11 (18)    30 (53)   28 (57)   161 (79)  174 (73)  631 (80)   318 (80)  396 (72)  169 (42)

    Warps that each go through tokens of their own, joined at the end, were 10 to 25 percent slower throughout.
    """
    if sides.latent:
        return (16, 4, 1) if dtype == torch.float32 else (32, 4 if sides.group <= 16 else 8, 3)
    if dtype == torch.float32:
        return (32, 4, 2) if dim <= 128 else (16, 4, 2)
    return (64, 4, 4) if dim <= 128 else (32, 4, 4)


@triton.jit
def _lengths(slots, starts, index, rows, idle, sight, SEES: tl.constexpr):
    """How many tokens each row sees."""
    slot = tl.load(slots + index, index < rows, idle)
    start = tl.load(starts + index, index < rows, 0)
    return tl.where(slot == idle, 0, start + 1 - first_seen(start, sight, SEES))


@triton.jit(do_not_specialize=["scale", "softcap", "rows", "share", "at_once", "idle", "sight"])
def _decode(
    query,
    keys,
    values,
    out,
    parts,
    sums,
    arrived,
    pages,
    slots,
    starts,
    sinks,
    scale,
    softcap,
    rows,
    share,
    at_once,
    idle,
    sight,
    q_row,
    q_head,
    out_row,
    out_head,
    table_line,
    SEES: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
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
    BATCH: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    LEAST: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    early(PDL)
    kv_head = tl.program_id(0)
    piece = tl.program_id(1)

    total = 0
    for at in range(0, rows, ROWS):
        total += tl.sum(_lengths(slots, starts, at + tl.arange(0, ROWS), rows, idle, sight, SEES))
    size = tl.maximum(tl.cdiv(total, share), LEAST)

    # Rows of like lengths: pieces that all run at once, since longer ones read faster.
    large = tl.maximum(tl.cdiv(total, at_once), LEAST)
    longest, pieces = 0, 0
    for at in range(0, rows, ROWS):
        index = at + tl.arange(0, ROWS)
        lengths = _lengths(slots, starts, index, rows, idle, sight, SEES)
        counts = tl.where(index < rows, tl.maximum((lengths + large // 2) // large, 1), 0)
        longest = tl.maximum(longest, tl.max(tl.cdiv(lengths, tl.maximum(counts, 1))))
        pieces += tl.sum(counts)
    size = tl.where((pieces <= at_once) & (longest * 100 <= large * EVEN), large, size)

    # pieces of all rows   | row 0: 0 1 2 | row 1: 3 | row 2: 4 5 |      (first: pieces of earlier rows)
    row, first, before = 0, 0, 0
    for at in range(0, rows, ROWS):
        index = at + tl.arange(0, ROWS)
        lengths = _lengths(slots, starts, index, rows, idle, sight, SEES)
        counts = tl.where(index < rows, tl.maximum((lengths + size // 2) // size, 1), 0)
        ended = (before + tl.cumsum(counts) <= piece) & (index < rows)
        row += tl.sum(ended.to(tl.int32))
        first += tl.sum(tl.where(ended, counts, 0))
        before += tl.sum(counts)
    if row >= rows:
        return

    slot = tl.load(slots + row)
    end = tl.load(starts + row) + 1
    low = first_seen(end - 1, sight, SEES)
    low = tl.where(slot == idle, end, low)
    count = tl.maximum((end - low + size // 2) // size, 1)
    own = tl.cdiv(tl.cdiv(end - low, count), BLOCK) * BLOCK
    low += (piece - first) * own
    high = tl.minimum(low + own, end)

    queries = tl.arange(0, QUERIES)
    dims = tl.arange(0, DIM_PADDED)
    rest = tl.arange(0, REST_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    heads = kv_head * GROUP + queries
    table = pages + slot.to(tl.int64) * table_line
    tokens = low + tl.arange(0, BLOCK)
    page = tl.load(table + tokens // PAGE_SIZE, tokens < high, -1)
    waited(PDL)
    asked = query + row.to(tl.int64) * q_row + heads[:, None] * q_head
    q = tl.load(asked + dims[None, :], (queries[:, None] < GROUP) & (dims[None, :] < FIRST), 0.0)
    if LATENT:
        q_rest = tl.load(asked + FIRST + rest[None, :], (queries[:, None] < GROUP) & (rest[None, :] < DIM - FIRST), 0.0)
    keys += kv_head * KEY_HEAD
    values += kv_head * VALUE_HEAD
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
    for _ in tl.range(low, high, BLOCK, num_stages=STAGES):
        seen = page >= 0
        places = page.to(tl.int64) * PAGE_SIZE + tokens % PAGE_SIZE
        tokens += BLOCK
        page = tl.load(table + tokens // PAGE_SIZE, tokens < high, -1)
        own_keys = keys + (places * KEY_TOKEN)[:, None]
        k = tl.load(own_keys + dims[None, :], seen[:, None] & (dims[None, :] < FIRST), 0.0)
        if LATENT:
            v = k
            k_rest = tl.load(own_keys + FIRST + rest[None, :], seen[:, None] & (rest[None, :] < DIM - FIRST), 0.0)
        else:
            v = tl.load(
                values + (places * VALUE_TOKEN)[:, None] + value_dims[None, :],
                seen[:, None] & (value_dims[None, :] < VALUE_DIM),
                0.0,
            )
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if LATENT:
            scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
        scores *= scale
        if SOFTCAP:
            scores = cap(scores, softcap) * 1.4426950408889634
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        mass = mass * fade + tl.sum(weights, 1)
        found = tl.dot(weights.to(v.dtype), v, found * fade[:, None], input_precision="ieee")
        top = higher

    target = out + row.to(tl.int64) * out_row + heads[:, None] * out_head + value_dims[None, :]
    real = (queries[:, None] < GROUP) & (value_dims[None, :] < VALUE_DIM)
    if count == 1:
        if SINKS:
            sink = tl.load(sinks + heads, queries < GROUP, 0.0).to(tl.float32) * 1.4426950408889634
            higher = tl.maximum(top, sink)
            fade = tl.exp2(top - higher)
            mass = mass * fade + tl.exp2(sink - higher)
            found *= fade[:, None]
        tl.store(target, found / tl.where(mass > 0, mass, 1.0)[:, None], real)
        return

    # parts [pieces, heads, value_dim], sums [pieces, heads]: log2 of a piece's mass
    spot = piece * (KV_HEADS * GROUP) + heads
    tl.store(
        parts + spot.to(tl.int64)[:, None] * VALUE_DIM + value_dims[None, :],
        found / tl.where(mass > 0, mass, 1.0)[:, None],
        real,
    )
    tl.store(sums + spot, top + tl.log2(tl.where(mass > 0, mass, 1.0)), queries < GROUP)
    tl.debug_barrier()
    ticket = arrived + row * KV_HEADS + kv_head
    if tl.atomic_add(ticket, 1, sem="acq_rel") < count - 1:
        return
    tl.store(ticket, 0)
    _merge(
        parts, sums, out + row.to(tl.int64) * out_row, sinks, first, count, kv_head, out_head,
        SINKS, KV_HEADS, GROUP, GROUP_PADDED, VALUE_DIM, VALUE_PADDED, BATCH,
    )  # fmt: skip


@triton.jit
def _merge(
    parts,
    sums,
    out,
    sinks,
    first,
    count,
    kv_head,
    out_head,
    SINKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BATCH: tl.constexpr,
):
    """Weigh a row's pieces by their mass, several at a time since each is read from afar."""
    queries = tl.arange(0, GROUP_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    heads = kv_head * GROUP + queries
    if SINKS:
        top = tl.load(sinks + heads, queries < GROUP, 0.0).to(tl.float32) * 1.4426950408889634
        mass = tl.full([GROUP_PADDED], 1.0, tl.float32)
    else:
        top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
        mass = tl.zeros([GROUP_PADDED], tl.float32)
    found = tl.zeros([GROUP_PADDED, VALUE_PADDED], tl.float32)
    for at in range(0, count, BATCH):
        piece = at + tl.arange(0, BATCH)
        spot = (first + piece)[:, None] * (KV_HEADS * GROUP) + heads[None, :]
        real = (piece[:, None] < count) & (queries[None, :] < GROUP)
        own = tl.load(sums + spot, real, float("-inf"), cache_modifier=".cg")
        part = tl.load(
            parts + spot.to(tl.int64)[:, :, None] * VALUE_DIM + value_dims[None, None, :],
            real[:, :, None] & (value_dims[None, None, :] < VALUE_DIM),
            0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(top, tl.max(own, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(own - base[None, :])
        fade = tl.exp2(top - base)
        mass = mass * fade + tl.sum(weights, 0)
        found = found * fade[:, None] + tl.sum(part * weights[:, :, None], 0)
        top = higher
    tl.store(
        out + heads[:, None] * out_head + value_dims[None, :],
        found / tl.where(mass > 0, mass, 1.0)[:, None],
        (queries[:, None] < GROUP) & (value_dims[None, :] < VALUE_DIM),
    )
