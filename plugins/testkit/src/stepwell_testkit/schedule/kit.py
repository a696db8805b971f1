"""The one class that an author subclasses: every decision of the contract together."""

from __future__ import annotations

from typing import ClassVar

from stepwell_testkit.schedule.chunking import Chunking
from stepwell_testkit.schedule.decisions import Decisions
from stepwell_testkit.schedule.life import Lives
from stepwell_testkit.schedule.order import Orders
from stepwell_testkit.schedule.preempting import Preempting
from stepwell_testkit.schedule.ranked import Ranked


# The last runs first.
class ScheduleKit(Lives, Ranked, Chunking, Preempting, Decisions, Orders):
    """Tests a `SchedulePolicy`: give the fixture `policy`, a new one that nobody has asked.

    The kit copies the policy (`copy.deepcopy`) where it needs two alike; a pure policy can be copied.
    """

    required: ClassVar[tuple[str, ...]] = ("policy",)
