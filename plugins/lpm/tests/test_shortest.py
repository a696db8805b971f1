"""Shortest prefill first: in the queue, and in a step."""

from dataclasses import dataclass

import pytest

from stepwell import SchedulePolicy
from stepwell_lpm import ShortestPrefillFirst, ShortestPrefillFirstConfig, stepwell_schedulers
from stepwell_testkit import KitRequest, KitView, ScheduleKit


class TestShortest(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return ShortestPrefillFirst(ShortestPrefillFirstConfig(), context)


class TestWithOutputAndAging(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return ShortestPrefillFirst(
            ShortestPrefillFirstConfig(output_weight=2.0, wait_tokens=10.0, max_passes=300), context
        )


@dataclass(frozen=True)
class Prompt:
    """A prompt under way, as far as sharing a step goes."""

    unplanned: int
    priority: int = 0


@pytest.fixture
def shortest(context) -> SchedulePolicy:
    offer = next(offer for offer in stepwell_schedulers() if offer.name == "shortest-prefill-first")
    return offer.make(offer.config(), context)


def order(policy, waiting, cached=()):
    view = KitView(dict(zip((request.rid for request in waiting), cached, strict=False)))
    return [request.order for request in policy.order(waiting, view)]


def queue(*lengths, **changes):
    return [KitRequest(at, rid=f"r{at}", length=length, **changes) for at, length in enumerate(lengths)]


def test_fewest_uncached_tokens_first_then_by_arrival(shortest):
    assert order(shortest, queue(100, 64, 5_000, 64, 65), [0, 0, 4_990, 0, 1]) == [2, 1, 3, 4, 0]


def test_priority_goes_before_length(shortest):
    waiting = [*queue(10, 20), KitRequest(2, rid="r2", length=9_000, priority=1)]
    assert order(shortest, waiting) == [2, 0, 1]


def test_answers_count_where_they_have_a_weight(context):
    policy = ShortestPrefillFirst(ShortestPrefillFirstConfig(output_weight=0.5), context)
    waiting = [KitRequest(0, rid="a", length=100, max_new=400), KitRequest(1, rid="b", length=250, max_new=50)]
    assert order(policy, waiting) == [1, 0]


def test_waiting_counts_where_a_second_is_worth_something(context):
    policy = ShortestPrefillFirst(ShortestPrefillFirstConfig(wait_tokens=100.0), context)
    waiting = [KitRequest(0, rid="long", length=1_000), KitRequest(1, rid="short", length=10, arrival=10.0)]
    assert order(policy, waiting) == [0, 1]


def shares(policy, prompts, budget):
    return list(policy.chunks(prompts, budget, KitView()))


def test_whole_short_prompts_go_before_the_rest_of_a_long_one(shortest):
    assert shares(shortest, [Prompt(100_000), Prompt(500), Prompt(300)], 2_048) == [1_248, 500, 300]


def test_the_oldest_keeps_its_share_of_a_step(shortest):
    assert shares(shortest, [Prompt(100_000), Prompt(3_000), Prompt(1_000)], 2_048) == [512, 536, 1_000]
    assert shares(shortest, [Prompt(100), Prompt(3_000), Prompt(1_000)], 2_048) == [100, 948, 1_000]


def test_more_urgent_prompts_come_before_shorter_ones(shortest):
    assert shares(shortest, [Prompt(10), Prompt(100), Prompt(900, priority=1)], 960) == [10, 50, 900]


def test_a_step_is_used_up_and_never_overdrawn(shortest):
    for budget in (0, 1, 16, 999, 4_000):
        given = shares(shortest, [Prompt(700), Prompt(0), Prompt(1_200), Prompt(90)], budget)
        assert sum(given) == min(budget, 1_990)
    assert shares(shortest, [], 100) == []


def test_a_long_prompt_ends_however_many_short_ones_come(shortest):
    left, steps = 50_000, 0
    while left:
        left -= shares(shortest, [Prompt(left), *[Prompt(1_024)] * 4], 2_048)[0]
        steps += 1
    assert steps == 97


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_passes": -1}, "max_passes: -1 is less than 0"),
        ({"output_weight": -1.0}, "output_weight: -1.0 is less than 0"),
        ({"wait_tokens": float("inf")}, "wait_tokens: inf is more than can be meant"),
        ({"output_weight": 1e300}, "output_weight: 1e\\+300 is more than can be meant"),
        ({"oldest_share": float("nan")}, "oldest_share: nan is no number"),
        ({"max_passes": 2**40}, "max_passes: .* is more than can be meant"),
        ({"oldest_share": -0.1}, "oldest_share: -0.1 is less than 0"),
        ({"oldest_share": 1.5}, "oldest_share: 1.5 is more than 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        ShortestPrefillFirstConfig(**settings)
