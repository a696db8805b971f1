"""First come, first served, within priorities."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from stepwell.abc.schedule import SchedulePolicy, ScheduleView, WaitingView
from stepwell.offers import Context, NoConfig

_priority = attrgetter("priority")


class Fcfs(SchedulePolicy):
    """More urgent requests first; by arrival among equals. A retracted request keeps its arrival."""

    def __init__(self, config: NoConfig, context: Context | None) -> None:
        """Nothing to set."""

    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Sequence[WaitingView]:
        if len(set(map(_priority, waiting))) < 2:
            return waiting
        return sorted(waiting, key=lambda request: -request.priority)
