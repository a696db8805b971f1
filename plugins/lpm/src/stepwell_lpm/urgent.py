"""What the orders of this package share: more urgent requests first, and settings that are numbers from 0."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import isfinite

from stepwell import Groups, RankedPolicy, ScheduleView, WaitingView


class UrgentFirst(RankedPolicy):
    """A group is called by a priority; its requests go before those of every smaller one."""

    def merge(self, groups: Groups, view: ScheduleView) -> Iterator[WaitingView]:
        return chain.from_iterable(groups[priority] for priority in sorted(groups, reverse=True))  # type: ignore[type-var]


def refuse_less(least: int, **settings: float) -> None:
    """Raise for the first setting that is less than `least`, or no number at all."""
    for name, value in settings.items():
        if not isfinite(value):
            raise ValueError(f"{name}: {value} is no number")
        if value < least:
            raise ValueError(f"{name}: {value} is less than {least}")
