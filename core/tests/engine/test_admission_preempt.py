"""Who gives way to a waiting request: worked out by numbers, all or nobody, never back and forth."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig
from stepwell.schedule.admission import Room

SIM = SimConfig(token_bytes=8, eos_every=0)


class Urgent(SchedulePolicy):
    """More urgent ones first; they take from less urgent ones, the latest first."""

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: (-request.priority, request.order))

    def preempt(self, request, running, view):
        less = [other for other in running if other.priority < request.priority]
        return sorted(less, key=lambda other: (other.priority, -other.order))


class Named(Urgent):
    """Names whom it is told to, by rank of arrival."""

    def __init__(self, *ranks):
        self.ranks = ranks
        self.asked = 0

    def preempt(self, request, running, view):
        self.asked += 1
        return [other for rank in self.ranks for other in running if other.order == rank]


class Greedy(SchedulePolicy):
    """Everybody takes from everybody."""

    def order(self, waiting, view):
        return waiting

    def preempt(self, request, running, view):
        return running


def preempted(w):
    return w.brain.counters.causes["preempted"]


def finish(w):
    w.run()
    w.check()
    w.clean()


def seat(w, rid):
    job = w.brain._jobs.get(rid)
    return None if job is None else job.seat


def books(w):
    """What an admission pass reckons with is what a recount from scratch gives."""
    brain = w.brain
    room = Room(w.cache, brain._forecast, brain._batch.seats)
    seats = list(brain._batch.seats)
    for out in seats:
        less = room.without([out])
        again = Room(w.cache, brain._forecast, [other for other in seats if other is not out])
        assert less.running == again.running
        assert less._new == pytest.approx(again._new)
        assert (less._rest, less._growth) == (again._rest, again._growth)


def test_b123_only_as_many_give_way_as_make_room(world):
    """A may generate 1,000 tokens yet, B 10; C needs 100 beside what is kept for them."""
    w = world(page=4, device=300, policy=Named(0, 1), reserve=1.0, max_running=4)
    a = w.submit("a" * 100, max_tokens=1000)
    b = w.submit("b" * 8, max_tokens=10)
    w.turn(2)
    c = w.submit("c" * 40, max_tokens=60, priority=5)
    w.turn(3)
    assert preempted(w) == 1
    assert seat(w, a) is None
    assert seat(w, b) is not None
    assert seat(w, c) is not None
    books(w)
    finish(w)
    assert w.finished_at[c] < w.finished_at[a]


def test_who_is_of_no_use_stays_though_named_first(world):
    w = world(page=4, device=300, policy=Named(1, 0), reserve=1.0, max_running=4)
    a = w.submit("a" * 100, max_tokens=1000)
    b = w.submit("b" * 8, max_tokens=10)
    w.turn(2)
    w.submit("c" * 40, max_tokens=60, priority=5)
    w.turn(3)
    assert preempted(w) == 1
    assert seat(w, a) is None
    assert seat(w, b) is not None
    finish(w)


def test_nobody_gives_way_where_all_together_are_not_enough(world):
    policy = Named(1)
    w = world(page=4, device=40, policy=policy, reserve=1.0, max_running=4)
    w.submit("a" * 40, max_tokens=40)
    w.submit("b" * 8, max_tokens=8)
    w.turn(2)
    c = w.submit("c" * 100, max_tokens=20, priority=5)
    w.turn(4)
    assert policy.asked
    assert not preempted(w)
    assert seat(w, c) is None
    finish(w)
    assert not preempted(w)


def test_pages_that_others_hold_too_are_no_room(world):
    """Two share a long prompt: only both together would make room for a third."""
    w = world(page=4, device=32, policy=Named(1), reserve=0.0, max_running=4)
    w.submit("s" * 80, max_tokens=12)
    w.turn(3)
    w.submit("s" * 80 + "x", max_tokens=12)
    w.turn(3)
    w.submit("z" * 60, max_tokens=4, priority=1)
    w.turn(3)
    assert not preempted(w)
    finish(w)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slot_is_reason_enough(world, depth):
    w = world(replace(SIM, depth=depth), lag=depth - 1, policy=Urgent(), max_running=2)
    low = [w.submit(letter * 8, max_tokens=40) for letter in "ab"]
    w.turn(4)
    high = w.submit("high", max_tokens=4, priority=1)
    w.turn(4)
    assert seat(w, high) is not None or high in w.finished_at
    assert preempted(w) == 1
    assert seat(w, low[0]) is not None
    finish(w)
    assert w.finished_at[high] < min(w.finished_at[rid] for rid in low)


@pytest.mark.parametrize("host", [0, 64])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("turns", range(1, 9))
def test_b126_who_gives_way_is_taken_out_of_the_step_whatever_it_is_at(world, turns, depth, host):
    """The victim is in the middle of its prompt, or decodes, with a row in the plan that is being made."""
    w = world(
        replace(SIM, depth=depth, chunk=8), page=4, device=16, host=host, lag=depth - 1, policy=Urgent(), reserve=0.0
    )
    low = w.submit("l" * 36, max_tokens=16)
    w.turn(turns)
    high = w.submit("h" * 36, max_tokens=16, priority=1)
    while not preempted(w):
        w.turn()
        books(w)
    assert seat(w, low) is None
    while seat(w, high) is None:
        w.turn()
        assert seat(w, low) is None, "it has a claim"
    assert len({row.slot for row in w.plans[-1].rows}) == 1
    finish(w)
    assert preempted(w) == 1
    assert w.finished_at[high] < w.finished_at[low]


def test_who_somebody_gave_way_for_is_admitted_before_all_others(world):
    w = world(page=4, device=20, policy=Urgent(), reserve=0.0, max_running=8)
    low = w.submit("l" * 60, max_tokens=12)
    w.turn(3)
    high = w.submit("h" * 60, max_tokens=12, priority=1)
    small = [w.submit(f"small{n}", max_tokens=2) for n in range(6)]
    w.turn(12)
    assert preempted(w) == 1
    finish(w)
    opened = {op.prompt: at for at, plan in reversed(list(enumerate(w.plans))) for op in plan.opens}
    assert opened[w.requests[high].tokens] <= min(opened[w.requests[rid].tokens] for rid in small)
    assert w.brain.counters.skips["claim"] > 0
    assert w.finished_at[high] < w.finished_at[low]


def test_a_claim_ends_with_who_has_it(world):
    w = world(page=4, device=20, policy=Urgent(), reserve=0.0)
    low = w.submit("l" * 60, max_tokens=12)
    w.turn(3)
    high = w.submit("h" * 60, max_tokens=12, priority=1)
    while not (preempted(w) or w.brain._batch.leaving):
        w.turn()
    w.abort(high)
    w.run()
    w.check(low)
    w.clean()


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_nobody_gives_way_more_often_than_allowed(world, limit):
    w = world(page=4, device=24, policy=Greedy(), reserve=0.0, max_retractions=limit, max_running=3)
    rids = [w.submit(chr(97 + n) * 24, max_tokens=24) for n in range(10)]
    w.run()
    w.check()
    assert preempted(w) <= limit * len(rids)
    assert bool(preempted(w)) == bool(limit)
    w.clean()


def test_two_do_not_take_from_each_other_in_turn(world):
    w = world(page=4, device=16, policy=Greedy(), reserve=0.0, max_retractions=50)
    first, second = w.submit("a" * 40, max_tokens=20), w.submit("b" * 40, max_tokens=20)
    finish(w)
    assert preempted(w) == 1
    assert w.finished_at[second] < w.finished_at[first]


@pytest.mark.parametrize(
    "answer", [None, 5, ["nobody"], lambda running: [*running, *running], lambda running: running[0]]
)
def test_nonsense_is_counted_and_nobody_gives_way(world, answer):
    class Confused(Urgent):
        def preempt(self, request, running, view):
            return answer(running) if callable(answer) else answer

    w = world(page=4, device=16, policy=Confused(), reserve=0.0)
    for letter in "abc":
        w.submit(letter * 40, max_tokens=20)
    finish(w)
    assert not preempted(w)
    assert w.brain.counters.policy_faults
    assert "preempt" in w.brain.counters.last_fault


@pytest.mark.parametrize("seed", range(10))
def test_whoever_takes_from_whom_every_answer_is_right(world, seed):
    draw = random.Random(seed)
    windows = draw.choice([(), (9,), (9, 5)])
    depth = draw.choice((1, 2))
    sim = replace(SIM, depth=depth, windows=windows, chunk=draw.choice((8, 24, 64)))
    policy = draw.choice([Urgent, Greedy])()
    w = world(
        sim, page=4, device=draw.randint(17, 28), host=draw.choice((0, 64)), lag=depth - 1, policy=policy,
        reserve=draw.choice((0.0, 0.4)), max_running=draw.choice((2, 8)), prefill_every=draw.choice((1, 3)),
    )  # fmt: skip
    for number in range(16):
        w.submit(f"{draw.choice('abc') * 20}{number}", max_tokens=draw.randint(1, 40), priority=draw.randint(0, 3))
        w.turn(draw.randint(0, 4))
    finish(w)
    counters = w.brain.counters
    assert counters.policy_faults == 0
    assert counters.causes["preempted"] > 0
