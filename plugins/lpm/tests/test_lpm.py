"""Longest prefix first."""

import random

import pytest

from stepwell import SchedulePolicy
from stepwell_lpm import Lpm, LpmConfig, stepwell_schedulers
from stepwell_testkit import KitRequest, KitView, ScheduleKit


class TestLpm(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return Lpm(LpmConfig(), context)


class TestEveryOtherStepIsByArrival(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return Lpm(LpmConfig(max_passes=1), context)


class TestArrivalOrder(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return Lpm(LpmConfig(max_passes=0), context)


@pytest.fixture
def lpm(context) -> SchedulePolicy:
    (offer,) = stepwell_schedulers()
    assert offer.name == "lpm"
    return offer.make(offer.config(), context)


def order(policy, waiting, cached):
    view = KitView({request.rid: hit for request, hit in zip(waiting, cached, strict=True)})
    return [request.order for request in policy.order(waiting, view)]


def queue(size, **changes):
    return [KitRequest(at, rid=f"r{at}", length=4096, **changes) for at in range(size)]


def test_most_cached_first_then_by_arrival(lpm):
    assert order(lpm, queue(6), [0, 64, 16, 64, 0, 128]) == [5, 1, 3, 2, 0, 4]


def test_priority_goes_before_what_is_cached(lpm):
    waiting = [*queue(2), KitRequest(2, rid="urgent", priority=1), KitRequest(3, rid="later", priority=-1)]
    assert order(lpm, waiting, [0, 64, 0, 512]) == [2, 1, 0, 3]


def test_a_long_queue_is_ordered_like_a_short_one(lpm):
    """There is no number of waiting requests from which on it gives up."""
    dice = random.Random(1)
    waiting = queue(5_000)
    cached = [dice.randrange(0, 4096, 16) for _ in waiting]
    assert order(lpm, waiting, cached) == sorted(range(5_000), key=lambda at: (-cached[at], at))


def test_each_request_is_probed_once_an_order(lpm):
    view = KitView()
    lpm.order(queue(300), view)
    assert view.asked == 300


def test_nothing_is_asked_while_nothing_changes(lpm):
    waiting = queue(300)
    view = KitView({request.rid: request.order % 7 for request in waiting})
    first = lpm.order(waiting, view)
    again = lpm.order(list(waiting), view)
    assert list(again) == list(first)
    assert view.asked == 300


def test_a_new_request_or_a_changed_cache_is_noticed(lpm):
    waiting = queue(3)
    hits = {"r0": 0, "r1": 16, "r2": 32}
    view = KitView(hits)
    assert [request.order for request in lpm.order(waiting, view)] == [2, 1, 0]
    hits["late"] = 24
    waiting.append(KitRequest(3, rid="late"))
    assert [request.order for request in lpm.order(waiting, view)] == [2, 3, 1, 0]
    assert [request.order for request in lpm.order(waiting[1:], view)] == [2, 3, 1]
    assert [request.order for request in lpm.order(waiting, KitView({**hits, "r0": 512}))] == [0, 2, 3, 1]


def steps_until_cold_runs(policy, arrivals=500):
    """Case B120: one place a step, a warm arrival a step; the overdue go first, as core has it."""
    waiting = [KitRequest(0, rid="cold")]
    hits = {"cold": 0}
    for step in range(1, arrivals + 1):
        waiting.append(KitRequest(step, rid=f"warm-{step}"))
        hits[f"warm-{step}"] = 100
        overdue = step > policy.max_passes
        first = waiting[0] if overdue else policy.order(waiting, KitView(hits))[0]
        if first.rid == "cold":
            return step
        waiting.remove(first)
    return None


@pytest.mark.parametrize("bound", [0, 1, 20, 64, 400])
def test_b120_a_cold_request_is_passed_at_most_as_often_as_the_bound_says(context, bound):
    policy = Lpm(LpmConfig(max_passes=bound), context)
    assert steps_until_cold_runs(policy) == bound + 1


def test_b120_by_default_there_is_a_bound(lpm):
    assert steps_until_cold_runs(lpm) == 65


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="max_passes: -1"):
        LpmConfig(max_passes=-1)
