"""The order: each request once, the same when asked again, equals by arrival, an aging bound that stays."""

from __future__ import annotations

import copy
import random
from dataclasses import astuple, replace

import pytest

from stepwell import SchedulePolicy
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.queues import batch_of, odd_of, queue_of, rid_of, whole
from stepwell_testkit.schedule.views import KitRequest, KitView

LONGEST_BOUND = 10_000


class Orders(Kit):
    """What holds for any order."""

    def test_it_is_a_schedule_policy(self, policy: SchedulePolicy) -> None:
        assert isinstance(policy, SchedulePolicy)

    def test_an_empty_queue_has_an_empty_order(self, policy: SchedulePolicy) -> None:
        assert whole(policy.order([], KitView())) == []
        assert whole(policy.order([], KitView(running=batch_of(random.Random(0), 3)))) == []

    @pytest.mark.parametrize("seed", range(8))
    def test_the_order_holds_each_request_once(self, policy: SchedulePolicy, seed: int) -> None:
        waiting, view = queue_of(random.Random(seed), size=3**seed // 4)
        order = whole(policy.order(waiting, view))
        assert sorted(request.order for request in order) == [request.order for request in waiting]
        known = {id(request) for request in waiting}
        assert all(id(request) in known for request in order), "the order holds requests that are copies"

    @pytest.mark.parametrize("seed", range(4))
    def test_it_is_pure(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        waiting, view = queue_of(dice, 40)
        before, said = list(waiting), [astuple(request) for request in waiting]  # type: ignore[call-overload]
        first = whole(policy.order(waiting, view))
        assert waiting == before, "the queue that it was given has changed"
        assert [astuple(request) for request in waiting] == said, "requests have changed"  # type: ignore[call-overload]
        whole(policy.order(*queue_of(dice, 25)))
        whole(policy.order(waiting[:7], view))
        assert whole(policy.order(tuple(waiting), view)) == first, "the same question later gets another answer"

    @pytest.mark.parametrize("read", [0, 1, 7])
    def test_an_order_that_is_read_in_part_is_the_same_next_time(self, policy: SchedulePolicy, read: int) -> None:
        """Core reads no more than an admission pass looks at."""
        waiting, view = queue_of(random.Random(read), 30)
        first = [request.order for request in whole(copy.deepcopy(policy).order(waiting, view))]
        started = iter(policy.order(waiting, view))
        assert [next(started).order for _ in range(read)] == first[:read]
        assert [request.order for request in whole(policy.order(waiting, view))] == first

    def test_it_follows_what_the_cache_holds_now(self, policy: SchedulePolicy) -> None:
        """An answer remembered from an older view may not differ from what a new policy would say (B128)."""
        waiting, view = queue_of(random.Random(5), 30)
        fresh = copy.deepcopy(policy)
        changed = replace(view, hits={request.rid: 64 * (request.order % 3) for request in waiting})
        whole(policy.order(waiting, view))
        assert whole(policy.order(waiting, changed)) == whole(fresh.order(waiting, changed))

    @pytest.mark.parametrize("cached", [0, 32])
    def test_equals_keep_their_order_of_arrival(self, policy: SchedulePolicy, cached: int) -> None:
        waiting = [KitRequest(order, rid=rid_of(order), arrival=float(order)) for order in range(200)]
        view = KitView({request.rid: cached for request in waiting}, branches={request.rid: 0 for request in waiting})
        assert [request.order for request in whole(policy.order(waiting, view))] == list(range(200))

    def test_its_aging_bound_is_a_number_that_stays(self, policy: SchedulePolicy) -> None:
        bound = policy.max_passes
        assert isinstance(bound, int) and not isinstance(bound, bool)
        assert 0 <= bound <= LONGEST_BOUND, f"a bound of {bound} passes bounds nothing"
        for seed in range(3):
            whole(policy.order(*queue_of(random.Random(seed), 50)))
        assert policy.max_passes == bound

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_about_a_request_makes_it_raise(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        odd = odd_of(dice, 60, policy.max_passes)
        running = batch_of(dice, 3)
        hits = {request.rid: dice.choice([0, request.length - 1]) for request in odd}
        view = KitView(hits, running, dice.choice([0.0, 1e12]))
        assert len(whole(policy.order(odd, view))) == len(odd)
        for request in odd:
            assert whole(policy.order([request], view)) == [request]
            policy.admit(request, view)
            policy.look_past(request, 1, view)
            policy.preempt(request, running, view)
