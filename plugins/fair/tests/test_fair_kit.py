"""The kit of schedule policies."""

import pytest

from stepwell_fair import FairConfig, fair
from stepwell_testkit import ScheduleKit


class TestFairByWhoRuns(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return fair(FairConfig(memory_s=0.0, age_s=30.0, weights={"t": 3}, preempt_over=2), context)


class TestFair(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return fair(FairConfig(preempt_over=1), context)
