"""First come, first served, under the kit, and as core keeps its order."""

from types import SimpleNamespace

import pytest

from stepwell.builtin.fcfs import Fcfs
from stepwell.offers import NoConfig
from stepwell_testkit import KitRequest, KitView, ScheduleKit


class TestFcfs(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return Fcfs(NoConfig(), context)


def test_more_urgent_first_then_by_arrival_and_one_that_comes_back_keeps_its_own():
    fcfs = Fcfs(NoConfig(), None)
    waiting = [KitRequest(0), KitRequest(1, priority=5), KitRequest(2, retractions=1), KitRequest(7, priority=5)]
    assert [request.order for request in fcfs.order(waiting, KitView())] == [1, 7, 0, 2]


def test_it_asks_nothing_of_the_view():
    fcfs = Fcfs(NoConfig(), None)
    waiting = [KitRequest(order, priority=order % 3) for order in range(9)]
    assert [request.order for request in fcfs.order(waiting, SimpleNamespace())] == [2, 5, 8, 1, 4, 7, 0, 3, 6]


def test_it_keeps_the_bound_that_there_is():
    assert Fcfs(NoConfig(), None).max_passes == 64
