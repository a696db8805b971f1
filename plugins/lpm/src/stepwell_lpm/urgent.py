"""What orders of this package share: more urgent requests first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from stepwell import Groups, RankedPolicy, ScheduleView, WaitingView


class UrgentFirst(RankedPolicy):
    """A group is called by a priority; its requests go before those of every smaller one."""

    def merge(self, groups: Groups, view: ScheduleView) -> Iterator[WaitingView]:
        return chain.from_iterable(groups[priority] for priority in sorted(groups, reverse=True))  # type: ignore[type-var]
