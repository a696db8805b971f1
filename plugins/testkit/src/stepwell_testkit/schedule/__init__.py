"""The kit of schedule policies."""

from stepwell_testkit.schedule.kit import ScheduleKit
from stepwell_testkit.schedule.views import KitPrefix, KitRequest, KitRunning, KitView

__all__ = ["KitPrefix", "KitRequest", "KitRunning", "KitView", "ScheduleKit"]
