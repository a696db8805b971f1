"""First come, first served, within priorities."""

from __future__ import annotations

from stepwell.abc.ranked import RankedPolicy
from stepwell.abc.schedule import ScheduleView, WaitingView
from stepwell.offers import Context, NoConfig


class Fcfs(RankedPolicy):
    """More urgent requests first; by arrival among equals. A retracted request keeps its arrival."""

    def __init__(self, config: NoConfig, context: Context | None) -> None:
        """Nothing to set."""

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[None, int]:
        return None, -request.priority
