"""Clients that leave at any moment: nothing stays behind, and those who stay are answered as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepwell.abc.schedule import RunningView, ScheduleView, WaitingView
from stepwell.builtin.fcfs import Fcfs
from stepwell.engine.actions import Query
from stepwell.offers import NoConfig

from .conftest import World


class Pushy(Fcfs):
    """Whoever is more urgent takes the place of whoever is less, latest first."""

    def __init__(self) -> None:
        super().__init__(NoConfig(), None)  # type: ignore[arg-type]

    def preempt(
        self, request: WaitingView, running: Sequence[RunningView], view: ScheduleView
    ) -> Sequence[RunningView]:
        below = [other for other in running if other.priority < request.priority]
        return sorted(below, key=lambda other: (other.priority, -other.order))


def job(w: World, rid: str) -> Any:
    return w.brain._jobs[rid]


def until(w: World, what: Callable[[], object], limit: int = 300) -> None:
    for _ in range(limit):
        if what():
            return
        w.turn()
    raise AssertionError("it never came to that")


def leave(w: World, rid: str) -> None:
    """The request goes; within the turn it has ended, and all others finish."""
    w.abort(rid)
    w.turn()
    assert w.last(rid).finish in ("abort", "length"), "or its last token came in the same turn"
    assert rid not in w.brain._jobs
    w.run()
    w.check(*(other for other in w.requests if other != rid))
    assert (w.brain.waiting, w.brain.running) == (0, 0)
    rows = w.brain.counters.told().by["tenant"]["t"]
    assert (rows["waiting"], rows["running"]) == (0, 0)
    w.clean()


@pytest.fixture
def crowded(world: type[World]) -> Callable[..., World]:
    def make(**options: Any) -> World:
        return world(page=4, reserve=0.0, count_by=("tenant",), **options)

    return make


@pytest.mark.parametrize("state", ["waiting", "first chunk", "mid-prefill", "decoding"])
def test_a_client_leaves(crowded: Callable[..., World], state: str) -> None:
    w = crowded(device=60, max_running=2, max_prefill_tokens=8)
    stays = w.submit("the one that stays", max_tokens=20, tenant="t")
    goes = w.submit("the one whose client goes away in a while", max_tokens=20, tenant="t")
    behind = w.submit("the one that waits for it", max_tokens=4, tenant="t")
    w.turn()
    match state:
        case "waiting":
            until(w, lambda: job(w, stays).generated)
            goes = behind
            assert job(w, goes).seat is None
        case "first chunk":
            until(w, lambda: job(w, goes).seat)
            assert job(w, goes).seat.done == job(w, goes).seat.lease.cached.total
        case "mid-prefill":
            until(w, lambda: job(w, goes).seat and 0 < job(w, goes).seat.done < job(w, goes).length)
        case "decoding":
            until(w, lambda: job(w, goes).generated > 2)
    leave(w, goes)


@pytest.mark.parametrize("host", [0, 64])
def test_a_client_leaves_whose_request_gave_its_pages_away(crowded: Callable[..., World], host: int) -> None:
    w = crowded(device=16, host=host)
    rids = [w.submit(letter * 12, max_tokens=40, tenant="t") for letter in "abc"]
    until(w, lambda: w.brain.counters.retractions)
    goes = next(rid for rid in rids if job(w, rid).retractions)
    assert job(w, goes).seat is None
    leave(w, goes)


@pytest.mark.parametrize("who", ["claims", "gave way", "runs beside"])
def test_a_client_leaves_while_pages_are_claimed(crowded: Callable[..., World], who: str) -> None:
    w = crowded(device=16, policy=Pushy(), lag=3, depth=4)
    low = [w.submit(letter * 16, max_tokens=24, tenant="t") for letter in "ab"]
    w.turn()
    until(w, lambda: all(job(w, rid).generated for rid in low))
    urgent = w.submit("u" * 24, max_tokens=12, priority=5, tenant="t")
    until(w, lambda: w.brain.counters.causes["preempted"])
    victims = [rid for rid in low if job(w, rid).retractions]
    assert job(w, urgent).seat is None, "its pages are not free yet"
    match who:
        case "claims":
            leave(w, urgent)
        case "gave way":
            leave(w, victims[-1])
        case "runs beside":
            leave(w, next(rid for rid in low if rid not in victims))


def test_a_client_leaves_at_any_turn_of_a_crowd(world: type[World]) -> None:
    """Every fourth turn of the same busy life, each of its requests in turn."""
    endings = set()
    for turn in range(1, 60, 4):
        for which in range(5):
            w = world(
                page=4, device=18, host=24, policy=Pushy(), reserve=0.0, max_prefill_tokens=12, max_running=3,
                count_by=("tenant",), audit=False,
            )  # fmt: skip
            rids = [
                w.submit(letter * 14, max_tokens=18, priority=urgency, tenant="t")
                for letter, urgency in zip("abcab", (0, 0, 1, 0, 0), strict=True)
            ]
            w.turn(10)
            w.submit("urgent", max_tokens=18, priority=9, tenant="t")
            w.turn(max(0, turn - 10))
            here = w.brain._jobs.get(rids[which])
            if here is None:
                continue
            endings.add((here.seat is None, here.retractions > 0))
            leave(w, rids[which])
    assert endings == {(True, False), (True, True), (False, False), (False, True)}


# --- a full queue ----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_who_comes_and_never_who_comes_back(crowded: Callable[..., World]) -> None:
    w = crowded(device=16, max_waiting=1)
    rids = []
    for letter in "abc":
        rids.append(w.submit(letter * 12, max_tokens=40, tenant="t"))
        w.turn()
    waits = w.submit("waiting", max_tokens=4, tenant="t")
    until(w, lambda: w.brain.waiting > 1)
    assert w.brain.counters.retractions
    late = w.submit("too late", max_tokens=4, tenant="t")
    w.turn()
    assert (w.last(late).finish, w.last(late).later) == ("refused", True)
    assert "no more than 1 may" in w.last(late).error
    assert not [rid for rid in (*rids, waits) if rid in w.outputs and w.last(rid).finish == "refused"]
    w.run()
    w.check(*rids, waits)
    w.clean()


@pytest.mark.parametrize("gone", ["first", "last"])
def test_clients_leave_who_wait_for_one_answer_of_storage(world: type[World], gone: str) -> None:
    """Storage is asked for one of them; who takes its place asks, and the others need not be looked at again."""
    w = world(page=4, device=60, host=60, storage={}, max_running=1)
    w.submit("s" * 60, "old", max_tokens=1)
    w.run()
    w.cache.flush()
    carry_out = w._carry_out
    held: list[Any] = []
    w._carry_out = lambda action: held.append(action) if isinstance(action, Query) else carry_out(action)  # type: ignore[method-assign]
    w.submit("b" * 60, "busy", max_tokens=40)
    w.turn(3)
    many = [w.submit("s" * 60 + chr(65 + number), max_tokens=1) for number in range(40)]
    w.turn()
    plans: list[object] = []
    plan_fetch = w.cache.plan_fetch
    w.cache.plan_fetch = lambda *told: plans.append(told) or plan_fetch(*told)  # type: ignore[method-assign]
    leaving = many[:30] if gone == "first" else many[10:]
    for rid in leaving:
        w.abort(rid)
    w.turn()
    assert len(plans) == (30 if gone == "first" else 0)
    w._carry_out = carry_out  # type: ignore[method-assign]
    for action in held:
        carry_out(action)
    w.run()
    stay = [rid for rid in many if rid not in leaving]
    w.check("busy", *stay)
    assert w.brain.counters.bytes_fetched, "the first that stays has read it"
    w.clean()
