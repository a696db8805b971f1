"""Small batches: no plan ahead, rows laid out by expert where they arrive."""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_symm.device.plan import counted, totals_learnt, totals_told
from stepwell_symm.device.rows import RUN, quantised, sent, words_of, words_put
from stepwell_symm.device.waits import (
    at_peer,
    desk_free,
    flag_awaited,
    given_up,
    raised,
    turn_of,
    words_awaited,
)

MARK: tl.constexpr = tl.constexpr(16)
"""Bits of a mark that say which expert, counted from 1; those above say how many rows it has before this one."""
EXPERT: tl.constexpr = tl.constexpr(0xFFFF)


@triton.jit
def _ahead(experts, token, chosen, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """How many of this rank's earlier tokens chose the same experts."""
    before = tl.zeros(chosen.shape, tl.int32)
    for begin in range(0, token * TOP, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        earlier = tl.load(experts + at, mask=at < token * TOP, other=-1)
        before += tl.sum((earlier[:, None] == chosen[None, :]).to(tl.int32), 0)
    return before


@triton.jit
def _send_row(
    desk,
    turn,
    token,
    tokens,
    experts,
    weights,
    slots,
    own,
    SENT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    MARKS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    MANY: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """Store a token where it goes, and marks everywhere; what is earlier is counted while the numbers travel."""
    words, values, scales = 0, 0, 0
    if EIGHT:
        values, scales = quantised(tokens, token, HIDDEN, RUNS)
    else:
        words = words_of(tokens, token, WORDS, BLOCK)
    which = tl.arange(0, triton.next_power_of_2(TOP))
    chosen = tl.load(experts + token * TOP + which, mask=which < TOP, other=-1)
    shares = tl.load(weights + token * TOP + which, mask=which < TOP, other=0.0)
    row = tl.full((), RANK * CAPACITY, tl.int64) + token
    for turned in tl.static_range(WORLD):
        peer = (RANK + 1 + turned) % WORLD
        goes = tl.max(((chosen >= peer * own) & (chosen < (peer + 1) * own)).to(tl.int32), 0)
        tl.store(slots + token * WORLD + peer, tl.where(goes > 0, token, -1))
        if goes > 0:
            sent(
                desk, peer, row, words, values, scales, TOKENS, SCALES, HIDDEN, WORDS, BLOCK, RUNS, EIGHT
            )  # fmt: skip
    before = _ahead(experts, token, chosen, TOP, MANY)
    for turned in tl.static_range(WORLD):
        peer = (RANK + 1 + turned) % WORLD
        local = (chosen - peer * own).to(tl.int32)
        here = (chosen >= 0) & (local >= 0) & (local < own)
        mark = tl.where(here, (before << MARK) | (local + 1), 0)
        tl.store(at_peer(desk, peer, MARKS, tl.int32) + row * TOP + which, mark, mask=which < TOP)
        tl.store(at_peer(desk, peer, WEIGHTS, tl.float32) + row * TOP + which, shares, mask=which < TOP)
    for turned in tl.static_range(WORLD):
        peer = (RANK + 1 + turned) % WORLD
        raised(at_peer(desk, peer, SENT, tl.int32) + row, turn)


@triton.jit(do_not_specialize=["count"])
def low_send_kernel(
    desk,
    tokens,
    experts,
    weights,
    slots,
    count,
    own,
    ACKS: tl.constexpr,
    TOTALS: tl.constexpr,
    SENT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    MARKS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    BINS: tl.constexpr,
    MANY: tl.constexpr,
    EIGHT: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Store each token once into each of its ranks, with marks of its experts; the last program tells totals."""
    turn = turn_of(desk)
    desk_free(desk, turn, ACKS, RANK, WORLD, TIMED)
    if given_up(desk) != 0:
        return
    if tl.program_id(0) == tl.num_programs(0) - 1:
        totals = counted(experts, count * TOP, BINS, MANY)
        totals_told(desk, turn, totals, count, own, TOTALS, RANK, WORLD, BINS)
    else:
        for token in range(tl.program_id(0), count, tl.num_programs(0) - 1):
            _send_row(
                desk, turn, token, tokens, experts, weights, slots, own, SENT, TOKENS, SCALES, MARKS, WEIGHTS, RANK,
                WORLD, CAPACITY, TOP, HIDDEN, WORDS, BLOCK, RUNS, MANY, EIGHT,
            )  # fmt: skip


@triton.jit
def _spread_row(
    desk,
    turn,
    row,
    source,
    arrived,
    arrived_scales,
    places,
    own,
    TOTALS: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    MARKS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    ROOM: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    EIGHT: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Copy a row to each of its experts here, behind the rows of the ranks before its own."""
    which = tl.arange(0, triton.next_power_of_2(TOP))
    rank = tl.arange(0, triton.next_power_of_2(WORLD))[:, None]
    marks = tl.load(at_peer(desk, RANK, MARKS, tl.int32) + row * TOP + which, mask=which < TOP, other=0)
    local = (marks & EXPERT) - 1
    totals = at_peer(desk, RANK, TOTALS, tl.int64)
    ahead = (rank < source) & (local[None, :] >= 0)
    theirs = words_awaited(totals + rank * (own + 1) + local[None, :], ahead, turn, desk, TIMED)
    behind = (marks >> MARK) + tl.sum(tl.where(ahead, theirs, 0), 0)
    place = tl.where(local >= 0, local * ROOM + behind, -1)
    tl.store(places + row * TOP + which, place, mask=which < TOP)
    words = words_of(at_peer(desk, RANK, TOKENS, tl.int32), row, WORDS, BLOCK)
    run = tl.arange(0, RUNS)
    inside = run < HIDDEN // RUN
    scales = tl.zeros((RUNS,), tl.float32)
    if EIGHT:
        came = at_peer(desk, RANK, SCALES, tl.float32) + row * (HIDDEN // RUN)
        scales = tl.load(came + run, mask=inside, other=0.0)
    for one in tl.static_range(TOP):
        there = tl.sum(tl.where(which == one, place, 0), 0).to(tl.int64)
        if there >= 0:
            words_put(arrived, there, words, WORDS, BLOCK)
            if EIGHT:
                tl.store(arrived_scales + there * (HIDDEN // RUN) + run, scales, mask=inside)


@triton.jit
def spread_kernel(
    desk,
    arrived,
    arrived_scales,
    counts,
    places,
    own,
    TOTALS: tl.constexpr,
    SENT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    MARKS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    OWN: tl.constexpr,
    EIGHT: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Lay out what arrives by expert, rows in the order of ranks and tokens; the last program writes `counts`.

    `arrived` [own, WORLD * CAPACITY] rows; `places` [WORLD * CAPACITY, TOP]: which of them a token's are, or -1.
    """
    turn = turn_of(desk)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        totals_learnt(desk, turn, counts, own, TOTALS, RANK, WORLD, OWN, TIMED)
    else:
        rank = tl.arange(0, triton.next_power_of_2(WORLD))[:, None]
        totals = at_peer(desk, RANK, TOTALS, tl.int64)
        for row in range(tl.program_id(0), WORLD * CAPACITY, tl.num_programs(0) - 1):
            source = row // CAPACITY
            tokens = words_awaited(totals + rank * (own + 1) + own, rank == source, turn, desk, TIMED)
            if row % CAPACITY < tl.sum(tl.sum(tl.where(rank == source, tokens, 0), 1), 0):
                flag_awaited(at_peer(desk, RANK, SENT, tl.int32) + row, turn.to(tl.int32), desk, TIMED)
                _spread_row(
                    desk, turn, tl.full((), 0, tl.int64) + row, source, arrived, arrived_scales, places, own, TOTALS,
                    TOKENS, SCALES, MARKS, RANK, WORLD, WORLD * CAPACITY, TOP, HIDDEN, WORDS, BLOCK, RUNS, EIGHT, TIMED,
                )  # fmt: skip


@triton.jit
def reduce_kernel(
    desk,
    outputs,
    places,
    own,
    TOTALS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    BACK: tl.constexpr,
    SUMS: tl.constexpr,
    RANK: tl.constexpr,
    CAPACITY: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum up what the experts here made of a row, and store that into the rank whose token it is; a program a row."""
    if given_up(desk) != 0:
        return
    turn = turn_of(desk)
    row = tl.program_id(0).to(tl.int64)
    source = tl.program_id(0) // CAPACITY
    tokens = tl.load(at_peer(desk, RANK, TOTALS, tl.int64) + source * (own + 1) + own).to(tl.int32)
    if row % CAPACITY < tokens:
        kind: tl.constexpr = outputs.dtype.element_ty
        at = tl.arange(0, BLOCK)
        weights = at_peer(desk, RANK, WEIGHTS, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        experts = 0
        for which in tl.static_range(TOP):
            place = tl.load(places + row * TOP + which).to(tl.int64)
            part = tl.load(outputs + place * HIDDEN + at, mask=(at < HIDDEN) & (place >= 0), other=0.0)
            total += part.to(tl.float32) * tl.load(weights + row * TOP + which)
            experts += (place >= 0).to(tl.int32)
        if experts > 0:
            there = (RANK * CAPACITY + tl.program_id(0) % CAPACITY).to(tl.int64)
            tl.store(at_peer(desk, source, SUMS, kind) + there * HIDDEN + at, total.to(kind), mask=at < HIDDEN)
            raised(at_peer(desk, source, BACK, tl.int32) + there, turn)
