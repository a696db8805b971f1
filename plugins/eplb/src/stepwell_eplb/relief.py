"""Moves that relieve the hottest rank of each row: a trade, a further replica elsewhere, or a replica given up.

Each is judged by how much less the ranks together have to do beyond the goal, for each expert that has to travel. A
trade takes two; a replica over one that an expert can spare takes one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stepwell_eplb.rows import Ints, Rows, loads
from stepwell_eplb.swaps import coldest

PARTNERS = 8
"""Ranks, the coldest first, that the hottest one may trade with."""
SPARED = 12
"""Replicas that may be given up for one of the hottest rank's experts."""
QUIET = 4
"""Experts, those with least to do first, that may come in the place of a replica that the hottest rank gives up."""
ABOVE_MEAN = 1 / 16
"""What a token above the mean counts, beside one above the goal: of two moves, the one that leaves more room."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Held(Rows):
    """Rows that also know which ranks hold which experts."""

    held: Bools
    """[rows, ranks, experts]"""

    @classmethod
    def over(cls, rows: Rows) -> Held:
        """The same rows, not copied."""
        count, ranks, _ = rows.experts.shape
        held = np.zeros((count, ranks, rows.units.shape[1]), dtype=np.bool_)
        np.put_along_axis(held, rows.experts, values=True, axis=2)
        return cls(rows.experts, rows.units, rows.count, rows.share, rows.loads, held)

    def kept(self, rows: npt.NDArray[np.intp]) -> Held:
        """A copy of some of the rows."""
        return Held(*(getattr(self, field.name)[rows] for field in fields(self)))

    def holders(self, expert: Ints) -> Bools:
        """[rows, n, ranks]: which ranks hold these experts [rows, n]."""
        return np.take_along_axis(self.held, expert[:, None, :], axis=2).transpose(0, 2, 1)


@dataclass(slots=True)
class Writes:
    """At most one move a row: which expert comes into which slot. -1: none."""

    gain: Floats
    """[rows], for each expert that travels."""
    slots: Ints
    """[rows, 2], counted over the row."""
    experts: Ints
    """[rows, 2]"""


def relieve(rows: Held, goal: Ints) -> Writes:
    """Carry out the best move for the hottest rank of each row, where one helps; answer what was written."""
    hot = rows.loads.argmax(axis=1)
    pain = Pain(goal, rows.mean)
    best = _best([_trade(rows, hot, pain), _copy(rows, hot, pain), _give_up(rows, hot, pain)])
    write(rows, best)
    return best


def write(rows: Held, writes: Writes) -> None:
    """Put experts into slots; shares and loads follow."""
    slots = rows.experts.shape[2]
    flat = rows.experts.reshape(len(rows.experts), -1)
    for slot, expert in zip(writes.slots.T, writes.experts.T, strict=True):
        at = np.flatnonzero(slot >= 0)
        to, come, gone = slot[at], expert[at], flat[at, slot[at]]
        rows.count[at, gone] -= 1
        rows.count[at, come] += 1
        flat[at, to] = come
        rank = to // slots
        rows.held[at, rank, gone] = (rows.experts[at, rank] == gone[:, None]).any(axis=1)
        rows.held[at, rank, come] = True
    np.floor_divide(rows.units, np.maximum(rows.count, 1), out=rows.share)
    rows.loads[:] = loads(rows.experts, rows.share)


@dataclass(frozen=True, slots=True)
class Pain:
    """How bad a rank's load is: nothing up to the mean, little up to the goal, in full beyond."""

    goal: Ints
    mean: Ints

    def __call__(self, load: Ints) -> Floats:
        """[rows, ...] of any shape."""
        shape = (-1, *(1,) * (load.ndim - 1))
        over = np.maximum(load - self.goal.reshape(shape), 0).astype(np.float64)
        return over + ABOVE_MEAN * np.maximum(load - self.mean.reshape(shape), 0)


def _best(found: list[Writes]) -> Writes:
    """For each row the move that gains most, of equals the first kind; none where nothing gains."""
    gains = np.stack([one.gain for one in found])
    kind, every = gains.argmax(axis=0), np.arange(gains.shape[1])
    slots = np.stack([one.slots for one in found])[kind, every]
    experts = np.stack([one.experts for one in found])[kind, every]
    gain = gains[kind, every]
    slots[gain <= 0] = -1
    return Writes(gain, slots, experts)


def _trade(rows: Held, hot: Ints, pain: Pain) -> Writes:
    """One of its experts for one of a cold rank."""
    count, ranks, slots = rows.experts.shape
    every = np.arange(count)
    cold = coldest(rows.loads, min(PARTNERS, ranks - 1))
    mine, theirs = rows.experts[every, hot], rows.experts[every[:, None], cold]
    same = mine[:, :, None, None] == theirs[:, None, :, :]
    forbidden = same.any(axis=3, keepdims=True) | same.any(axis=1, keepdims=True)
    theirs_share = np.take_along_axis(rows.share, theirs.reshape(count, -1), axis=1).reshape(count, 1, -1, slots)
    moved = np.take_along_axis(rows.share, mine, axis=1)[:, :, None, None] - theirs_share
    here, there = rows.loads[every, hot], np.take_along_axis(rows.loads, cold, axis=1)
    before = pain(here)[:, None, None, None] + pain(there)[:, None, :, None]
    gain = before - pain(here[:, None, None, None] - moved) - pain(there[:, None, :, None] + moved)
    gain[forbidden] = 0
    i, k, j = np.unravel_index(gain.reshape(count, -1).argmax(axis=1), gain.shape[1:])
    partner = cold[every, k]
    return Writes(
        gain[every, i, k, j] / 2,
        np.stack([hot * slots + i, partner * slots + j], axis=1),
        np.stack([theirs[every, k, j], mine[every, i]], axis=1),
    )


def _copy(rows: Held, hot: Ints, pain: Pain) -> Writes:
    """A further replica of one of its experts, on another rank, over one that its expert can spare."""
    count = len(rows.experts)
    every = np.arange(count)
    mine = rows.experts[every, hot]
    flat, home, given, cost, after = _spared(rows, hot, pain)
    have = np.take_along_axis(rows.count, mine, axis=1)
    less = np.take_along_axis(rows.units, mine, axis=1) // (have + 1)
    holds = rows.holders(mine)
    drop = (np.take_along_axis(rows.share, mine, axis=1) - less)[:, :, None] * holds
    relief = (pain(rows.loads)[:, None] - pain(rows.loads[:, None] - drop)).sum(axis=2)
    there = np.take_along_axis(rows.loads, home, axis=1)
    more = pain(after[:, None, :] + less[:, :, None]) - pain(there)[:, None, :]
    gain = relief[:, :, None] - cost[:, None, :] - more
    gain[np.take_along_axis(holds, np.broadcast_to(home[:, None, :], gain.shape), axis=2)] = 0
    gain[~np.broadcast_to(given[:, None, :], gain.shape)] = 0
    i, k = np.unravel_index(gain.reshape(count, -1).argmax(axis=1), gain.shape[1:])
    return _single(gain[every, i, k], flat[every, k], mine[every, i])


def _spared(rows: Held, hot: Ints, pain: Pain) -> tuple[Ints, Ints, Bools, Floats, Ints]:
    """Slots elsewhere whose expert has a replica more than it needs, those on the least loaded ranks first.

    Answers slots, their ranks, whether they may be given up at all, what that costs the expert's other ranks, and what
    is left to do on their own.
    """
    count, ranks, slots = rows.experts.shape
    every = np.arange(count)
    flat = rows.experts.reshape(count, -1)
    share = np.take_along_axis(rows.share, flat, axis=1)
    left = np.repeat(rows.loads, slots, axis=1) - share
    spare = (np.take_along_axis(rows.count, flat, axis=1) > 1) & (np.arange(ranks * slots) // slots != hot[:, None])
    left[~spare] = np.iinfo(np.int64).max
    few = min(SPARED, ranks * slots)
    chosen = np.argpartition(left, few - 1, axis=1)[:, :few]
    chosen = np.take_along_axis(chosen, np.lexsort((chosen, np.take_along_axis(left, chosen, axis=1)), axis=1), axis=1)
    home, expert = chosen // slots, flat[every[:, None], chosen]
    given = spare[every[:, None], chosen]
    rise = _rise(rows, expert)
    holds = rows.holders(expert)
    np.put_along_axis(holds, home[:, :, None], values=False, axis=2)
    cost = (pain(rows.loads[:, None] + rise[:, :, None] * holds) - pain(rows.loads)[:, None]).sum(axis=2)
    return chosen, home, given, cost, np.where(given, left[every[:, None], chosen], 0)


def _give_up(rows: Held, hot: Ints, pain: Pain) -> Writes:
    """A quiet expert in the place of one of its replicas that the others can make up for."""
    count, _, slots = rows.experts.shape
    every = np.arange(count)
    mine = rows.experts[every, hot]
    share = np.take_along_axis(rows.share, mine, axis=1)
    holds = rows.holders(mine)
    holds[every, :, hot] = False
    rise = _rise(rows, mine)
    cost = (pain(rows.loads[:, None] + rise[:, :, None] * holds) - pain(rows.loads)[:, None]).sum(axis=2)
    quiet = _quiet(rows, mine)
    less = np.take_along_axis(rows.units // (rows.count + 1), quiet, axis=1)
    here = rows.loads[every, hot]
    after = (here[:, None] - share)[:, :, None] + less[:, None, :]
    gain = pain(here)[:, None, None] - pain(after) - cost[:, :, None]
    gain[np.take_along_axis(rows.count, mine, axis=1) < 2] = 0
    gain[~_absent(quiet, mine)[:, None, :].repeat(slots, axis=1)] = 0
    i, k = np.unravel_index(gain.reshape(count, -1).argmax(axis=1), gain.shape[1:])
    return _single(gain[every, i, k], hot * slots + i, quiet[every, k])


def _rise(rows: Rows, expert: Ints) -> Ints:
    """What each other replica of these experts [rows, n] has to do more when one is given up."""
    have = np.take_along_axis(rows.count, expert, axis=1)
    share = np.take_along_axis(rows.share, expert, axis=1)
    return np.take_along_axis(rows.units, expert, axis=1) // np.maximum(have - 1, 1) - share


def _quiet(rows: Rows, mine: Ints) -> Ints:
    """Experts with little to do that the hottest rank lacks, where there are as many."""
    few = min(QUIET + mine.shape[1], rows.units.shape[1])
    order = np.argsort(np.where(rows.count > 0, rows.units, np.iinfo(np.int64).max), axis=1, kind="stable")[:, :few]
    first = np.argsort(~_absent(order, mine), axis=1, kind="stable")[:, :QUIET]
    return np.take_along_axis(order, first, axis=1)


def _absent(experts: Ints, mine: Ints) -> Bools:
    return (experts[:, :, None] != mine[:, None, :]).all(axis=2)


def _single(gain: Floats, slot: Ints, expert: Ints) -> Writes:
    none = np.full_like(slot, -1)
    return Writes(gain, np.stack([slot, none], axis=1), np.stack([expert, none], axis=1))
