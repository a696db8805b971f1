"""How far each row can be improved from where it stands, and what every point on the way there costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell_eplb.greedy import Ints
from stepwell_eplb.relief import Held, relieve
from stepwell_eplb.rows import Rows

ALMOST = 256
"""A row that is stuck is given up when its hottest rank is above its goal by less than one part in so many."""


@dataclass(frozen=True, slots=True)
class Point:
    """Some rows after a move each."""

    rows: Ints
    worst: Ints
    cost: Ints
    """Slots that have another expert than in the beginning."""
    experts: Ints
    """[rows, ranks, slots of a rank]"""


def paths(rows: Rows, goal: Ints, most: int) -> list[Point]:
    """Moves that relieve the hottest rank of each row, until it is down to its goal, stuck, or has taken `most`.

    A row whose goal is out of reach goes for one halfway. Only points at which a row is better than ever are told.
    """
    active = np.flatnonzero(rows.worst > goal)
    some, aim, best = Held.over(rows).kept(active), goal[active], rows.worst[active]
    found: list[Point] = []
    for _ in range(most):
        if not len(active):
            break
        stuck = relieve(some, aim).gain <= 0
        worst = some.worst
        better = np.flatnonzero(worst < best)
        best = np.minimum(best, worst)
        moved = some.experts[better]
        cost = (moved != rows.experts[active[better]]).sum(axis=(1, 2))
        found.append(Point(active[better], worst[better], cost, moved))
        aim = np.where(stuck, (aim + worst) // 2, aim)
        done = (worst <= aim) | (stuck & (worst - aim < worst // ALMOST))
        on = np.flatnonzero(~done)
        if done.any():
            active, some, aim, best = active[on], some.kept(on), aim[on], best[on]
    return found
