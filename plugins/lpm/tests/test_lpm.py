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


class TestInUnitsAndAging(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return Lpm(LpmConfig(granularity=128, wait_tokens=2.5), context)


@pytest.fixture
def lpm(context) -> SchedulePolicy:
    offer = next(offer for offer in stepwell_schedulers() if offer.name == "lpm")
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


def test_less_than_a_unit_more_does_not_reorder(context):
    policy = Lpm(LpmConfig(granularity=64), context)
    assert order(policy, queue(5), [0, 63, 64, 127, 128]) == [4, 2, 3, 0, 1]


def test_a_second_of_waiting_is_worth_tokens(context):
    policy = Lpm(LpmConfig(wait_tokens=10.0), context)
    waiting = [KitRequest(at, rid=f"r{at}", arrival=float(at)) for at in range(4)]
    assert order(policy, waiting, [0, 9, 19, 31]) == [3, 0, 1, 2]


def test_a_long_queue_is_ordered_like_a_short_one(lpm):
    """There is no number of waiting requests from which on it gives up."""
    dice = random.Random(1)
    waiting = queue(5_000)
    cached = [dice.randrange(0, 4096, 16) for _ in waiting]
    assert order(lpm, waiting, cached) == sorted(range(5_000), key=lambda at: (-cached[at], at))


def test_each_request_is_probed_once_an_order(lpm):
    view = KitView()
    list(lpm.order(queue(300), view))
    assert view.asked == 300


def steps_until_cold_runs(policy, arrivals=500):
    """Case B120: one place a step, a warm arrival a step; the overdue go first, as core has it."""
    waiting = [KitRequest(0, rid="cold")]
    hits = {"cold": 0}
    for step in range(1, arrivals + 1):
        waiting.append(KitRequest(step, rid=f"warm-{step}"))
        hits[f"warm-{step}"] = 100
        overdue = step > policy.max_passes
        first = waiting[0] if overdue else next(iter(policy.order(waiting, KitView(hits))))
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


def test_b120_five_tokens_a_second_outweigh_a_hundred_after_twenty(context):
    policy = Lpm(LpmConfig(wait_tokens=5.0, max_passes=10_000), context)
    waiting = [KitRequest(0, rid="cold")]
    hits = {"cold": 0}
    for step in range(1, 22):
        hits[f"warm-{step}"] = 100
        waiting.append(KitRequest(step, rid=f"warm-{step}", arrival=float(step)))
        first = next(iter(policy.order(waiting, KitView(hits, now=float(step)))))
        if first.rid == "cold":
            break
        waiting.remove(first)
    assert step == 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_passes": -1}, "max_passes: -1 is less than 0"),
        ({"granularity": 0}, "granularity: 0 is less than 1"),
        ({"wait_tokens": -0.5}, "wait_tokens: -0.5 is less than 0"),
        ({"wait_tokens": float("nan")}, "wait_tokens: nan is no number"),
        ({"wait_tokens": 1e308}, "wait_tokens: 1e\\+308 is more than can be meant"),
        ({"max_passes": 10**30}, "max_passes: 10+ is more than can be meant"),
        ({"granularity": 2**27}, "granularity: 134217728 is more than can be meant"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        LpmConfig(**settings)
