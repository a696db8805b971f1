"""First come, first served, within priorities."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.abc.schedule import SchedulePolicy, ScheduleView, WaitingView
from stepwell.offers import Context, NoConfig


class Fcfs(SchedulePolicy):
    """More urgent requests first; by arrival among equals. A retracted request keeps its arrival."""

    def __init__(self, config: NoConfig, context: Context | None) -> None:
        """Nothing to set."""

    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Sequence[WaitingView]:
        if all(request.priority == waiting[0].priority for request in waiting):
            return waiting
        return sorted(waiting, key=lambda request: -request.priority)
