"""Who gets which rows: each rank counts its own, tells the others, and learns from them where its rows go on each."""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_symm.device.waits import at_peer, desk_free, given_up, turn_of, word, words_awaited


@triton.jit
def _numbered(experts, slots, peer, count, own, TOP: tl.constexpr, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens go to a rank, which are numbered in their order."""
    which = tl.arange(0, triton.next_power_of_2(TOP))[None, :]
    rows = tl.full((), 0, tl.int32)
    for begin in range(0, count, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        inside = (token[:, None] < count) & (which < TOP)
        chosen = tl.load(experts + token[:, None] * TOP + which, mask=inside, other=-1)
        goes = tl.max(((chosen >= peer * own) & (chosen < (peer + 1) * own)).to(tl.int32), 1)
        slot = tl.where(goes > 0, rows + tl.cumsum(goes, 0) - goes, -1)
        tl.store(slots + token * WORLD + peer, slot, mask=token < count)
        rows += tl.sum(goes, 0)
    return rows


@triton.jit
def counted(experts, choices, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of each expert."""
    totals = tl.zeros((BINS,), tl.int32)
    for begin in range(0, choices, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        chosen = tl.load(experts + at, mask=at < choices, other=-1).to(tl.int32)
        known = (chosen >= 0) & (chosen < BINS)
        totals += tl.histogram(tl.where(known, chosen, 0), BINS, mask=known)
    return totals


@triton.jit
def totals_told(
    desk,
    turn,
    totals,
    count,
    own,
    TOTALS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    BINS: tl.constexpr,
):
    """Tell each rank how many rows its experts get from here, and last how many tokens this rank has."""
    for peer in tl.static_range(WORLD):
        local = tl.arange(0, BINS) - peer * own
        there = at_peer(desk, peer, TOTALS, tl.int64) + RANK * (own + 1)
        tl.store(there + local, word(totals, turn), mask=(local >= 0) & (local < own))
        tl.store(there + own, word(count, turn))


@triton.jit
def totals_learnt(
    desk,
    turn,
    counts,
    own,
    TOTALS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    OWN: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Wait for what all ranks tell, and write down the rows of each expert here."""
    rank = tl.arange(0, triton.next_power_of_2(WORLD))[:, None]
    expert = tl.arange(0, OWN)
    inside = (rank < WORLD) & (expert[None, :] < own)
    words = at_peer(desk, RANK, TOTALS, tl.int64) + rank * (own + 1) + expert[None, :]
    each = words_awaited(words, inside, turn, desk, TIMED)
    tl.store(counts + expert, tl.sum(each, 0), mask=expert < own)


@triton.jit(do_not_specialize=["count"])
def plan_kernel(
    desk,
    experts,
    slots,
    count,
    own,
    ACKS: tl.constexpr,
    MATRIX: tl.constexpr,
    TOTALS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    TOP: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Count and tell: a program for the tokens to each rank, and one for those of each expert.

    `slots` [tokens, WORLD]: the how-manieth of this rank's tokens there each one is, or -1.
    """
    turn = turn_of(desk)
    desk_free(desk, turn, ACKS, RANK, WORLD, TIMED)
    if given_up(desk) != 0:
        return
    to = tl.program_id(0)
    if to < WORLD:
        rows = _numbered(experts, slots, to, count, own, TOP, WORLD, BLOCK)
        for peer in tl.static_range(WORLD):
            tl.store(at_peer(desk, peer, MATRIX, tl.int64) + RANK * WORLD + to, word(rows, turn))
    else:
        totals = counted(experts, count * TOP, BINS, BLOCK * 4)
        totals_told(desk, turn, totals, count, own, TOTALS, RANK, WORLD, BINS)


@triton.jit
def learn_kernel(
    desk,
    book,
    own,
    MATRIX: tl.constexpr,
    TOTALS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    OWN: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Wait for what all ranks tell, and write it into `book`. One program.

    `book`: [WORLD] where this rank's rows begin on each; [WORLD + 1] where each rank's begin here, and their end;
    [own] rows of each expert here.
    """
    turn = turn_of(desk)
    rank = tl.arange(0, triton.next_power_of_2(WORLD))
    by, to = rank[:, None], rank[None, :]
    matrix = at_peer(desk, RANK, MATRIX, tl.int64)
    rows = words_awaited(matrix + by * WORLD + to, (by < WORLD) & (to < WORLD), turn, desk, TIMED)
    ahead = tl.sum(tl.where(by < RANK, rows, 0), 0)
    tl.store(book + rank, ahead, mask=rank < WORLD)
    here = tl.sum(tl.where(to == RANK, rows, 0), 1)
    tl.store(book + WORLD + rank, tl.cumsum(here, 0) - here, mask=rank < WORLD)
    tl.store(book + 2 * WORLD, tl.sum(here, 0))
    totals_learnt(desk, turn, book + 2 * WORLD + 1, own, TOTALS, RANK, WORLD, OWN, TIMED)
