"""The kit of schedule policies."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

import pytest

from stepwell import RunningView, SchedulePolicy, WaitingView
from stepwell_testkit.kit import Kit

LONGEST_BOUND = 10_000


@dataclass(frozen=True, slots=True)
class KitRequest:
    """A request in the queue (a `stepwell.WaitingView`)."""

    order: int
    rid: str = ""
    arrival: float = 0.0
    length: int = 64
    max_new: int = 16
    priority: int = 0
    routing_key: str | None = None
    tenant: str | None = None
    passes: int = 0


@dataclass(frozen=True, slots=True)
class KitRunning(KitRequest):
    """A request that holds pages (a `stepwell.RunningView`)."""

    generated: int = 0
    pages: int = 4


@dataclass
class KitView:
    """What a policy may ask (a `stepwell.ScheduleView`); `asked` counts the probes."""

    hits: Mapping[str, int] = field(default_factory=dict)
    """Cached tokens by request id."""
    running: Sequence[RunningView] = ()
    now: float = 1_000.0
    asked: int = 0
    version: int = field(default_factory=count().__next__, init=False)
    """Each view is of a cache that has changed since."""

    def cached(self, request: WaitingView) -> int:
        """Tokens of the request's prompt that device or host hold."""
        self.asked += 1
        return self.hits.get(request.rid, 0)


class ScheduleKit(Kit):
    """Tests a `SchedulePolicy`: give the fixture `policy`."""

    required: ClassVar[tuple[str, ...]] = ("policy",)

    def test_it_is_a_schedule_policy(self, policy: SchedulePolicy) -> None:
        assert isinstance(policy, SchedulePolicy)

    def test_an_empty_queue_has_an_empty_order(self, policy: SchedulePolicy) -> None:
        assert list(policy.order([], KitView())) == []
        assert list(policy.order([], KitView(running=_running(random.Random(0), 3)))) == []

    @pytest.mark.parametrize("seed", range(8))
    def test_the_order_holds_each_request_once(self, policy: SchedulePolicy, seed: int) -> None:
        waiting, view = _queue(random.Random(seed), size=3**seed // 4)
        order = policy.order(waiting, view)
        assert sorted(request.order for request in order) == [request.order for request in waiting]
        known = {id(request) for request in waiting}
        assert all(id(request) in known for request in order), "the order holds requests that are copies"

    @pytest.mark.parametrize("seed", range(4))
    def test_it_is_pure(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        waiting, view = _queue(dice, 40)
        before = list(waiting)
        first = list(policy.order(waiting, view))
        assert waiting == before, "the queue that it was given has changed"
        policy.order(*_queue(dice, 25))
        policy.order(waiting[:7], view)
        assert list(policy.order(tuple(waiting), view)) == first, "the same question later gets another answer"

    def test_it_follows_what_the_cache_holds_now(self, policy: SchedulePolicy) -> None:
        """An answer remembered from an older view may not differ from what a new policy would say (B128)."""
        waiting, view = _queue(random.Random(5), 30)
        fresh = copy.deepcopy(policy)
        changed = replace(view, hits={request.rid: 64 * (request.order % 3) for request in waiting})
        policy.order(waiting, view)
        assert list(policy.order(waiting, changed)) == list(fresh.order(waiting, changed))

    @pytest.mark.parametrize("cached", [0, 32])
    def test_equals_keep_their_order_of_arrival(self, policy: SchedulePolicy, cached: int) -> None:
        waiting = [KitRequest(order, rid=_rid(order), arrival=float(order)) for order in range(200)]
        view = KitView({request.rid: cached for request in waiting})
        assert [request.order for request in policy.order(waiting, view)] == list(range(200))

    def test_its_aging_bound_is_a_number_that_stays(self, policy: SchedulePolicy) -> None:
        bound = policy.max_passes
        assert isinstance(bound, int) and not isinstance(bound, bool)
        assert 0 <= bound <= LONGEST_BOUND, f"a bound of {bound} passes bounds nothing"
        for seed in range(3):
            policy.order(*_queue(random.Random(seed), 50))
        assert policy.max_passes == bound

    def test_b120_a_cold_request_runs_within_the_bound(self, policy: SchedulePolicy) -> None:
        """One is admitted a step, one with everything cached arrives a step: core's aging gets the cold one in."""
        steps = policy.max_passes + 2
        waiting: list[KitRequest] = [KitRequest(0, rid="cold", length=100)]
        hits = {"cold": 0}
        for step in range(1, steps + 1):
            warm = KitRequest(step, rid=f"warm-{step}", arrival=float(step), length=100)
            hits[warm.rid] = 96
            waiting.append(warm)
            admitted = _admit(policy, waiting, KitView(hits, now=float(step)))
            if admitted.rid == "cold":
                return
        pytest.fail(f"the cold request did not run in {steps} steps; the bound is {policy.max_passes} passes")

    @pytest.mark.parametrize("seed", range(3))
    def test_nobody_is_passed_more_often_than_the_bound(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        waiting: list[KitRequest] = []
        hits: dict[str, int] = {}
        for step in range(300):
            for _ in range(dice.choice([0, 1, 1, 2])):
                request = _request(dice, len(hits), step)
                hits[request.rid] = dice.randrange(0, request.length)
                waiting.append(request)
            if waiting:
                _admit(policy, waiting, KitView(hits, _running(dice, 4), float(step)))
        while waiting:
            _admit(policy, waiting, KitView(hits))

    @pytest.mark.parametrize("seed", range(4))
    def test_the_victim_is_one_that_runs(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        for size in (1, 2, 3, 17):
            running = _running(dice, size)
            view = KitView(running=running)
            victim = policy.victim(running, view)
            assert any(victim is request for request in running), f"{victim} does not run"
            assert policy.victim(running, view) is victim, "asked twice, it gives another victim"

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_about_a_request_makes_it_raise(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        odd: list[KitRequest] = []
        for order in range(60):
            length = dice.choice([1, 2, 10**7])
            odd.append(
                KitRequest(
                    order,
                    rid=dice.choice(["", "x" * 1000, "\0", _rid(order)]) + str(order),
                    arrival=dice.choice([0.0, 1e-9, 1e12]),
                    length=length,
                    max_new=dice.choice([0, 1, 10**7]),
                    priority=dice.choice([-(2**31), -1, 0, 2**31]),
                    routing_key=dice.choice([None, "", "ключ"]),
                    tenant=dice.choice([None, "", "t"]),
                    passes=dice.choice([0, policy.max_passes, 10**6]),
                )
            )
        view = KitView({request.rid: dice.choice([0, request.length - 1]) for request in odd}, now=0.0)
        assert len(policy.order(odd, view)) == len(odd)
        for request in odd:
            assert list(policy.order([request], view)) == [request]


def _admit(policy: SchedulePolicy, waiting: list[KitRequest], view: KitView) -> KitRequest:
    """One step of core with one place: the overdue first, by arrival, then as the policy has it."""
    order = policy.order(list(waiting), view)
    overdue = [request for request in waiting if request.passes >= policy.max_passes]
    first = overdue[0] if overdue else next(mine for mine in waiting if mine.order == order[0].order)
    waiting.remove(first)
    for at, request in enumerate(waiting):
        if request.order < first.order:
            assert request.passes < policy.max_passes, f"{request} is passed once more than the bound"
            waiting[at] = replace(request, passes=request.passes + 1)
    return first


def _queue(dice: random.Random, size: int) -> tuple[list[WaitingView], KitView]:
    waiting: list[WaitingView] = [_request(dice, order, order) for order in range(size)]
    hits = {request.rid: dice.randrange(0, request.length, 16) for request in waiting}
    return waiting, KitView(hits, _running(dice, 5))


def _request(dice: random.Random, order: int, arrival: float) -> KitRequest:
    return KitRequest(
        order,
        rid=_rid(order),
        arrival=float(arrival),
        length=16 * dice.randint(1, 64),
        max_new=dice.randint(1, 256),
        priority=dice.choice([0, 0, 0, 1, -1]),
        routing_key=dice.choice([None, "a", "b", "c"]),
        tenant=dice.choice([None, "t", "u"]),
        passes=0,
    )


def _running(dice: random.Random, size: int) -> list[RunningView]:
    return [
        KitRunning(
            10_000 + order,
            rid=f"running-{order}",
            priority=dice.randrange(3),
            routing_key=dice.choice([None, "a", "b"]),
            generated=dice.randrange(100),
            pages=dice.randrange(1, 50),
        )
        for order in range(size)
    ]


def _rid(order: int) -> str:
    """Names whose order as text is not the order of arrival."""
    return f"{order * 7919 % 1000:03d}-{order}"
