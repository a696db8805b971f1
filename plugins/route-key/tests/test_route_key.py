"""Requests with one routing key together."""

from __future__ import annotations

import random
from itertools import count
from statistics import mean

import pytest

from stepwell import Groups, SchedulePolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.offers import NoConfig
from stepwell_route_key import RouteKey, RouteKeyConfig, stepwell_schedulers
from stepwell_testkit import KitRequest, KitRunning, KitView, ScheduleKit


class TestRouteKey(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return RouteKey(RouteKeyConfig(), context)


class TestFewKeysMostCachedFirst(ScheduleKit):
    @pytest.fixture
    def policy(self, context):
        return RouteKey(RouteKeyConfig(max_keys=2, within="cached", granularity=64, max_passes=40), context)


@pytest.fixture
def policy(context) -> SchedulePolicy:
    (offer,) = stepwell_schedulers()
    assert offer.name == "route-key"
    return offer.make(offer.config(), context)


def queue(keys: str, **changes):
    """A request for each letter; `-` has no key."""
    return [KitRequest(at, rid=f"r{at}", routing_key=key.strip("-") or None, **changes) for at, key in enumerate(keys)]


def runs(keys: str):
    return [KitRunning(1_000 + at, routing_key=key.strip("-") or None) for at, key in enumerate(keys)]


def order(policy, waiting, running="", now=0.0, hits=()):
    view = KitView(dict(hits), running=runs(running), now=now)
    return "".join(request.routing_key or "-" for request in policy.order(waiting, view)), [
        request.order for request in policy.order(waiting, view)
    ]


def test_keys_that_run_go_first_by_how_many_run(policy):
    assert order(policy, queue("zaxcbamb"), "bbaac-") == ("aabbczxm", [1, 5, 4, 7, 3, 0, 2, 6])
    assert order(policy, queue("zaxcbamb"), "bbbaac-")[0] == "bbaaczxm"


def test_where_no_key_runs_they_go_by_their_oldest_request(policy):
    assert order(policy, queue("babcca")) == ("bbaacc", [0, 2, 1, 5, 3, 4])


def test_a_request_without_a_key_stands_by_its_arrival_among_keys_that_do_not_run(policy):
    assert order(policy, queue("x-b-yx"), "b") == ("bxx--y", [2, 0, 5, 1, 3, 4])


def test_an_empty_key_is_none(policy):
    waiting = [KitRequest(0, routing_key=""), KitRequest(1, routing_key="a"), KitRequest(2, routing_key="")]
    assert [request.order for request in policy.order(waiting, KitView(running=runs("a"), now=0.0))] == [1, 0, 2]


def test_priority_goes_before_keys(policy):
    waiting = [*queue("ab"), KitRequest(2, rid="r2", routing_key="c", priority=1)]
    assert order(policy, waiting, "a")[1] == [2, 0, 1]


def test_within_a_key_what_is_cached_may_decide(context):
    hits = {"r0": 0, "r1": 100, "r2": 300, "r3": 120}
    assert order(RouteKey(RouteKeyConfig(), context), queue("aaaa"), hits=hits)[1] == [0, 1, 2, 3]
    by_cached = RouteKey(RouteKeyConfig(within="cached", granularity=64), context)
    assert order(by_cached, queue("aaaa"), hits=hits)[1] == [2, 1, 3, 0]


def test_the_oldest_of_a_key_that_does_not_run_goes_first_once_it_has_waited_too_long(context):
    policy = RouteKey(RouteKeyConfig(max_wait_s=5.0), context)
    waiting = [KitRequest(at, rid=f"r{at}", arrival=float(at), routing_key=key) for at, key in enumerate("xaxyba")]
    assert order(policy, waiting, "aab", now=4.9)[1] == [1, 5, 4, 0, 2, 3]
    assert order(policy, waiting, "aab", now=5.0)[1] == [0, 1, 5, 4, 2, 3]
    assert order(policy, waiting, "aab", now=8.5)[1] == [0, 3, 1, 5, 4, 2]
    assert order(policy, waiting, "x", now=8.5)[1] == [1, 3, 0, 2, 5, 4]


def test_further_keys_are_held_back_while_enough_run(context):
    policy = RouteKey(RouteKeyConfig(max_keys=2, max_wait_s=5.0), context)
    one, other, alone = queue("ac-")
    busy = KitView(running=runs("aab-"), now=4.0)
    assert [policy.admit(request, busy) for request in (one, other, alone)] == [True, False, True]
    assert policy.admit(other, KitView(running=runs("aa-"), now=4.0))
    assert policy.admit(other, KitView(running=[], now=4.0))
    assert policy.admit(other, KitView(running=runs("ab"), now=5.0)), "it has waited long enough"


@pytest.mark.parametrize("within", ["arrival", "cached"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_is_what_it_would_be_from_scratch(context, within, seed):
    dice = random.Random(seed)
    config = RouteKeyConfig(within=within, granularity=100, max_wait_s=8.0)
    policy, fresh, groups = RouteKey(config, context), RouteKey(config, context), Groups()
    waiting: dict[int, KitRequest] = {}
    hits: dict[str, int] = {}
    for step in range(300):
        now = step / 4
        view = KitView(hits, runs(dice.choice(["", "aab", "-c", "ddbb", "a"])), now)
        key, priority = dice.choice([None, *"abcdef"]), dice.choice([0, 0, 1])
        new = KitRequest(step, rid=f"r{step}", arrival=now, routing_key=key, priority=priority)
        hits[new.rid] = dice.randrange(1_000)
        changed = dice.choice([new, *waiting.values()])
        hits[changed.rid] = dice.randrange(1_000)
        waiting[step] = new
        for request in (new, changed):
            groups.put(request, *policy.place(request, view))
        if dice.random() < 0.8:
            groups.discard(waiting.pop(dice.choice([step, *waiting])))
        kept = [request.order for request in policy.merge(groups, view)]
        assert kept == [request.order for request in fresh.order(list(waiting.values()), view)]


def test_a_pass_looks_at_heads_and_keys_that_run_only(context):
    policy, groups = RouteKey(RouteKeyConfig(), context), Groups()
    looked = count()

    class Seen(KitRequest):
        @property
        def arrival(self):
            next(looked)
            return 0.0

    view = KitView(running=runs("ab"), now=1.0)
    for at in range(2_000):
        request = Seen.__new__(Seen)
        for name, value in (("order", at), ("routing_key", f"k{at % 50}"), ("priority", 0), ("rid", f"r{at}")):
            object.__setattr__(request, name, value)
        groups.put(request, *policy.place(request, view))
    first = iter(policy.merge(groups, view))
    assert [next(first).order for _ in range(3)] == [0, 50, 100]
    assert next(looked) < 5


def keys_in_a_batch(policy, *, keys=24, places=16, steps=4_000) -> tuple[float, float]:
    """Mean number of keys that run, and the longest wait: always more requests than places, each as long by chance."""
    dice = random.Random(3)
    waiting: list[KitRequest] = []
    running: list[tuple[int, KitRunning]] = []
    seen, waits, orders = [], [0.0], count()
    for step in range(steps):
        while len(waiting) < 4 * places:
            waiting.append(KitRequest(next(orders), arrival=float(step), routing_key=f"k{dice.randrange(keys)}"))
        running = [(until, request) for until, request in running if until > step]
        while len(running) < places:
            view = KitView(running=[request for _, request in running], now=float(step))
            tried = (request for request in policy.order(waiting, view) if policy.admit(request, view))
            chosen = next(tried, None)
            if chosen is None:
                break
            waiting.remove(chosen)
            waits.append(step - chosen.arrival)
            running.append((step + dice.randint(5, 40), KitRunning(chosen.order, routing_key=chosen.routing_key)))
        seen.append(len({request.routing_key for _, request in running}))
    return mean(seen[steps // 4 :]), max(waits)


def test_a_batch_has_fewer_keys_than_in_arrival_order_and_waits_are_bounded(context):
    mixed, _ = keys_in_a_batch(Fcfs(NoConfig(), context))
    alike, longest = keys_in_a_batch(RouteKey(RouteKeyConfig(max_wait_s=150.0), context))
    assert alike < 0.6 * mixed
    assert 150.0 <= longest <= 150.0 + 40.0  # a place is free after the longest run, 40 s, at the latest


def test_few_keys_may_be_had_by_holding_back_others(context):
    alike, longest = keys_in_a_batch(RouteKey(RouteKeyConfig(max_wait_s=400.0, max_keys=2), context))
    assert alike < 2.2
    assert longest <= 400.0 + 40.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_passes": -1}, "max_passes: -1 is less than 0"),
        ({"max_wait_s": -0.5}, "max_wait_s: -0.5 is less than 0"),
        ({"max_wait_s": float("inf")}, "max_wait_s: inf is more than can be meant"),
        ({"max_wait_s": float("nan")}, "max_wait_s: nan is no number"),
        ({"max_keys": 2**60}, "max_keys: .* is more than can be meant"),
        ({"max_passes": 2**60}, "max_passes: .* is more than can be meant"),
        ({"max_keys": -2}, "max_keys: -2 is less than 0"),
        ({"granularity": 0}, "granularity: 0 is less than 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        RouteKeyConfig(**settings)
