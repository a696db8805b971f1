"""Which moves to make when more of them help than may be made: those that help most for what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple


class Stop(NamedTuple):
    """A place where a row may come to rest."""

    cost: int
    """Moves, from where it stands."""
    worst: int
    """Load of its hottest rank there."""


class Leg(NamedTuple):
    """From one stop to a better one; the least comes first."""

    key: float
    row: int
    to: int
    cost: int


def spend(ways: Sequence[Sequence[Stop]], budget: int) -> list[int]:
    """Where each row stops: a number in its way, which begins where it stands.

    Of all rows the leg that takes most off its hottest rank for each move goes first, while there is budget for it.
    """
    stops = [0] * len(ways)
    legs = [leg for row, way in enumerate(ways) if (leg := _leg(row, way, 0, budget))]
    heapify(legs)
    while legs:
        first = heappop(legs)
        row = first.row
        if first.cost <= budget:
            budget -= first.cost
            stops[row] = first.to
        following = _leg(row, ways[row], stops[row], budget)
        if following:
            heappush(legs, following)
    return stops


def _leg(row: int, way: Sequence[Stop], at: int, budget: int) -> Leg | None:
    """The leg from there that helps most for each move; None where none can be paid for."""
    here = way[at]
    legs = [
        Leg(-(here.worst - stop.worst) / cost if cost > 0 else -inf, row, to, cost)
        for to, stop in enumerate(way)
        if stop.worst < here.worst and (cost := stop.cost - here.cost) <= budget
    ]
    return min(legs, default=None)
