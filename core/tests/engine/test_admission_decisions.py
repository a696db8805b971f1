"""What a policy may decide about who is admitted, and what core holds against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig

SIM = SimConfig(token_bytes=8, eos_every=0)


class Arrival(SchedulePolicy):
    def order(self, waiting, view):
        return waiting


class Holding(Arrival):
    """Holds back whose tenant is named, until a time."""

    max_passes = 5

    def __init__(self, until=1e9):
        self.until = until
        self.asked = []

    def admit(self, request, view):
        self.asked.append(request.rid)
        return request.tenant != "held" or view.now >= self.until


def test_who_is_held_back_waits_and_others_go(world):
    policy = Holding()
    w = world(SIM, device=200, policy=policy)
    w.submit("first", max_tokens=100)
    w.turn(2)
    held = w.submit("held", tenant="held", max_tokens=4)
    others = [w.submit(f"other{n}", max_tokens=4) for n in range(4)]
    w.turn(30)
    assert held not in w.started_at
    assert all(rid in w.finished_at for rid in others)
    assert w.brain.counters.skips["policy"] > 3
    w.run()
    w.check()
    w.clean()


def test_who_was_passed_too_often_is_not_held_back_any_more(world):
    policy = Holding()
    w = world(SIM, device=200, policy=policy)
    w.submit("first", max_tokens=200)
    w.turn(2)
    held = w.submit("held", tenant="held", max_tokens=4)
    others = [w.submit(f"other{n}", max_tokens=2) for n in range(8)]
    w.turn(40)
    assert held in w.started_at
    assert sum(w.started_at[rid] < w.started_at[held] for rid in others) >= policy.max_passes
    w.run()
    w.clean()


def test_where_nothing_runs_nobody_is_held_back(world):
    policy = Holding()
    w = world(SIM, policy=policy)
    held = w.submit("held", tenant="held")
    w.run()
    w.check(held)
    assert policy.asked == []
    w.clean()


def test_who_is_held_back_for_a_time_is_asked_for_while_others_only_decode(world):
    w = world(SIM, device=200, policy=Holding(until=40))
    w.submit("first", max_tokens=150)
    w.turn(2)
    held = w.submit("held", tenant="held", max_tokens=4)
    w.turn(45)
    assert 40 < w.started_at[held] <= 44
    w.run()
    w.check()
    w.clean()


@pytest.mark.parametrize("past", [0, 1, 3, 20])
def test_as_many_are_looked_past_as_the_policy_says(world, past):
    class Looking(Arrival):
        def look_past(self, request, misfits, view):
            return misfits <= past

    w = world(SIM, device=40, policy=Looking(), reserve=0.0)
    w.submit("b" * 40, max_tokens=100)
    w.turn(2)
    large = [w.submit(chr(99 + n) * 140, max_tokens=4) for n in range(5)]
    small = w.submit("small", max_tokens=2)
    w.turn(6)
    assert (small in w.finished_at) == (past >= 5)
    w.run()
    w.check(small, *large)
    w.clean()


@pytest.mark.parametrize("name", ["admit", "look_past"])
@pytest.mark.parametrize("answer", [None, "yes", 1, ZeroDivisionError])
def test_answers_that_are_none_are_counted_and_the_default_taken(world, name, answer):
    def say(self, *_):
        if answer is ZeroDivisionError:
            raise ZeroDivisionError
        return answer

    policy = type("Confused", (Arrival,), {name: say})()
    w = world(SIM, device=24, policy=policy, reserve=0.0)
    for letter in "abcdef":
        w.submit(letter * 40, max_tokens=10)
    w.run()
    w.check()
    assert w.brain.counters.policy_faults
    assert name in w.brain.counters.last_fault
    w.clean()


class Mute(Exception):
    def __repr__(self):
        raise ZeroDivisionError("it cannot be shown either")


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "answered"])
@pytest.mark.parametrize("name", ["admit", "look_past", "preempt", "victim", "chunks"])
def test_what_cannot_even_be_shown_is_counted(world, name, raises):
    def say(self, *_):
        if raises:
            raise Mute
        return Mute()

    policy = type("Confused", (Arrival,), {name: say})()
    w = world(replace(SIM, chunk=16), device=24, policy=policy, reserve=0.0)
    for letter in "abcdef":
        w.submit(letter * 40, max_tokens=10)
    w.run()
    w.check()
    assert w.brain.counters.policy_faults
    assert name in w.brain.counters.last_fault
    w.clean()


@pytest.mark.parametrize(
    "change", [list.clear, lambda jobs: jobs.append(jobs[0]), list.pop], ids=["clear", "add", "pop"]
)
@pytest.mark.parametrize("name", ["preempt", "chunks"])
def test_a_policy_cannot_change_what_it_is_shown(world, name, change):
    """Core reckons with who runs, not with what a policy made of the answer to its question."""

    def say(self, *told):
        jobs = next(one for one in told if isinstance(one, list | tuple))
        change(jobs)
        return [64] * len(jobs) if name == "chunks" else jobs

    policy = type("Meddler", (Arrival,), {name: say})()
    w = world(replace(SIM, chunk=16), device=24, policy=policy, reserve=0.0)
    for letter in "abcdef":
        w.submit(letter * 40, max_tokens=10)
    w.run()
    w.check()
    assert name in w.brain.counters.last_fault
    w.clean()


def test_who_is_passed_keeps_what_is_cached_of_it(world):
    """Small ones need pages; the cached prefix of the large one that waits is older than what they leave behind."""
    w = world(SIM, device=48, reserve=0.0, policy=Arrival())
    w.submit("p" * 60, max_tokens=1)
    w.run()
    w.submit("b" * 40, max_tokens=60)
    w.turn(3)
    large = w.submit("p" * 60 + "q" * 100, max_tokens=30)
    small = []
    for number in range(12):
        small.append(w.submit(f"{number:02}" * 8, max_tokens=2))
        w.turn(2)
    w.run()
    w.check()
    assert sum(w.started_at[rid] < w.started_at[large] for rid in small) >= 8
    assert w.last(large).cached.total == 60
    w.clean()


@pytest.mark.parametrize("look_at", [1, 2, 512])
def test_a_window_of_candidates_lets_everybody_in_at_once_where_there_is_room(world, look_at):
    w = world(SIM, device=400, look_at=look_at, max_running=16)
    rids = [w.submit(chr(97 + n) * 16, max_tokens=200) for n in range(10)]
    w.turn(14)
    assert not w.brain.waiting
    w.run()
    w.check(*rids)
    w.clean()


@pytest.mark.parametrize("length", [*range(956, 964), 1000, 1016, *range(1016, 1026)])
@pytest.mark.parametrize("beside", [False, True])
def test_b121_what_passes_the_entry_is_admitted_and_nothing_stays_stuck(world, length, beside):
    """Capacity 1024, page 64; 17 tokens of it are for the answer. Alone or beside another, by the same arithmetic."""
    w = world(replace(SIM, context=4096, depth=1), page=64, device=16, lag=0)
    if beside:
        w.submit("other", max_tokens=8)
        w.turn()
    rid = w.submit("x" * length, max_tokens=7)
    w.turn(20)
    if length + 7 > 1024:
        assert w.last(rid).finish == "refused"
        assert "1024" in w.last(rid).error
    else:
        assert w.last(rid).finish == "length"
    w.abort(w.submit("y" * 1000, max_tokens=20))
    small = w.submit("z" * 10)
    w.turn()
    assert any(opened.prompt == w.requests[small].tokens for opened in w.plans[-1].opens)
    w.run()
    w.check(small)
    w.clean()
