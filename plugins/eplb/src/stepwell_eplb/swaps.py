"""What improves a packing without another replica: experts of two ranks that change places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell_eplb.rows import Ints, Rows

FEW = 4
"""Ranks that are found sooner by looking for one after the other than by sorting all."""
NEVER = np.iinfo(np.int64).max


def polish(rows: Rows, goal: Ints, rounds: int, partners: int) -> None:
    """Trade experts between the hottest rank and the coldest ones while that makes the hottest less hot.

    A row is done when its hottest rank is down to its goal, when no trade helps, or after so many rounds.
    """
    active = np.flatnonzero(rows.worst > goal)
    some, wanted = rows.taken(active), np.ones(len(active), dtype=np.bool_)
    for _ in range(rounds):
        if not len(active):
            return
        wanted &= _trade(some, partners, wanted) & (some.worst > goal[active])
        # To leave rows behind is to copy the others, so they are left behind by the half.
        left = np.flatnonzero(wanted)
        if 2 * len(left) <= len(active):
            rows.put(active, some)
            active, some, wanted = active[left], some.taken(left), wanted[left]
    rows.put(active, some)


def _trade(rows: Rows, partners: int, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Carry out the best trade of each row that is wanted to; whether there was one."""
    count, ranks, slots = rows.experts.shape
    every = np.arange(count)
    hot = rows.loads.argmax(axis=1)
    cold = coldest(rows.loads, min(partners, ranks - 1))
    mine, theirs = rows.experts[every, hot], rows.experts[every[:, None], cold].reshape(count, -1)
    same = mine[:, :, None] == theirs[:, None, :]
    by_rank = same.reshape(count, slots, -1, slots)
    forbidden = by_rank.any(axis=3, keepdims=True) | by_rank.any(axis=1, keepdims=True)
    moved = np.take_along_axis(rows.share, mine, 1)[:, :, None] - np.take_along_axis(rows.share, theirs, 1)[:, None, :]
    gap = rows.loads[every, hot][:, None] - np.take_along_axis(rows.loads, cold, axis=1)
    moved = moved.reshape(by_rank.shape)
    # The hotter of the two ranks afterwards is below what the hotter one had by the smaller of these.
    gain = np.minimum(moved, gap[:, None, :, None] - moved)
    gain[forbidden] = 0
    best = gain.reshape(count, -1).argmax(axis=1)
    i, k, j = np.unravel_index(best, by_rank.shape[1:])
    # A share is rounded down: only a gain beyond what that can amount to is one.
    done = wanted & (gain[every, i, k, j] > 2 * slots)
    at = np.flatnonzero(done)
    _exchange(rows, at, hot[at], i[at], cold[at, k[at]], j[at])
    return done


def coldest(loads: Ints, few: int) -> Ints:
    """[rows, few]: the ranks that have least to do."""
    if few > FEW:
        return np.argsort(loads, axis=1, kind="stable")[:, :few]
    left, every = loads.copy(), np.arange(len(loads))
    found = np.empty((len(loads), few), dtype=np.int64)
    for nth in range(few):
        found[:, nth] = left.argmin(axis=1)
        left[every, found[:, nth]] = NEVER
    return found


def _exchange(rows: Rows, at: Ints, one: Ints, i: Ints, two: Ints, j: Ints) -> None:
    """In rows `at`, slot i of rank `one` and slot j of rank `two` change places."""
    first, second = rows.experts[at, one, i], rows.experts[at, two, j]
    rows.experts[at, one, i], rows.experts[at, two, j] = second, first
    moved = rows.share[at, first] - rows.share[at, second]
    rows.loads[at, one] -= moved
    rows.loads[at, two] += moved


def part_twins(rows: Rows) -> None:
    """Trade away second replicas of an expert on one rank, wherever a rank is without that expert."""
    active = np.arange(len(rows.experts))
    some = rows
    while len(active):
        parted = _part(some)
        if some is not rows:
            rows.put(active, some)
        active = active[parted]
        some = rows.taken(active)


def _part(rows: Rows) -> npt.NDArray[np.intp]:
    """Trade away one second replica of each row; the rows that had one which could be."""
    found = _twins(rows)
    if not len(found[0]):
        return found[0]
    at, rank, slot = found
    some = rows.experts[at]
    every = np.arange(len(at))
    expert, home = some[every, rank, slot], some[every, rank]
    lacks = ~(some == expert[:, None, None]).any(axis=2)
    new_here = (some[:, :, :, None] != home[:, None, None, :]).all(axis=3)
    # An expert that is here already may come only from a rank that has it twice itself.
    allowed = lacks[:, :, None] & (new_here | second(some))
    shares = np.take_along_axis(rows.share[at], some.reshape(len(at), -1), axis=1).reshape(some.shape)
    moved = rows.share[at, expert][:, None, None] - shares
    after = np.maximum(rows.loads[at, rank][:, None, None] - moved, rows.loads[at][:, :, None] + moved)
    after[~allowed] = NEVER
    k, j = np.unravel_index(after.reshape(len(at), -1).argmin(axis=1), some.shape[1:])
    _exchange(rows, at, rank, slot, k, j)
    return at


def _twins(rows: Rows) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """Of each row that has any, the first slot with a second replica of an expert that some rank lacks."""
    twin = second(rows.experts)
    at = np.flatnonzero(twin.any(axis=(1, 2)))
    if not len(at):
        return at, at, at
    ranks = rows.experts.shape[1]
    r, g, s = np.nonzero(twin[at])
    expert = rows.experts[at[r], g, s]
    lacked = (rows.experts[at[r]] == expert[:, None, None]).any(axis=2).sum(axis=1) < ranks
    r, g, s = r[lacked], g[lacked], s[lacked]
    _, first = np.unique(r, return_index=True)
    return at[r[first]], g[first], s[first]


def second(experts: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """[rows, ranks, slots]: whether an earlier slot of the rank has the same expert."""
    found = np.zeros(experts.shape, dtype=np.bool_)
    order = np.sort(experts, axis=-1)
    some = (order[..., 1:] == order[..., :-1]).any(axis=-1)
    few = experts[some]
    found[some] = ((few[:, :, None] == few[:, None, :]) & np.tri(few.shape[1], k=-1, dtype=np.bool_)).any(axis=-1)
    return found
