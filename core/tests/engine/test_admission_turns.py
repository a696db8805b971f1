"""Decode and prefill beside each other: several prompts under way, how they share a step, and who waits how long."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig
from stepwell.engine.prompts import split

SIM = SimConfig(token_bytes=8, eos_every=0, chunk=16)


class Arrival(SchedulePolicy):
    def order(self, waiting, view):
        return waiting


def gaps(w, rid, decode):
    """Steps from one row of a request to its next, of those that decode or of those that do not."""
    prompt, slot, steps = w.requests[rid].tokens, None, []
    for at, plan in enumerate(w.plans):
        if slot in plan.closes:
            break
        slot = next((opened.slot for opened in plan.opens if opened.prompt == prompt), slot)
        steps += [at for row in plan.rows if row.slot == slot and (row.tokens is None) == decode]
    return [later - at for at, later in pairwise(steps)]


def both(w):
    """Steps in which decode rows and prompts meet."""
    return sum(len({row.tokens is None for row in plan.rows}) == 2 for plan in w.plans)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (4, 1), (1, 4), (2, 1), (1, 7)])
def test_neither_decode_nor_prefill_waits_longer_than_the_settings_say(world, prefill, decode, depth):
    sim = replace(SIM, depth=depth)
    w = world(sim, lag=depth - 1, device=400, prefill_every=prefill, decode_every=decode, max_running=4)
    answer = w.submit("a" * 8, max_tokens=120)
    w.turn(4)
    long = w.submit("l" * 400, max_tokens=4)
    w.turn(6)
    others = [w.submit(f"{n}" * 40, max_tokens=20) for n in range(6)]
    w.run()
    w.check(answer, long, *others)
    assert max(gaps(w, answer, decode=True)) == decode
    assert max(gaps(w, long, decode=False)) == prefill
    assert both(w)
    w.clean()


def test_by_default_every_step_holds_both(world):
    w = world(SIM, device=400)
    w.submit("a" * 8, max_tokens=60)
    w.turn(4)
    w.submit("l" * 320, max_tokens=1)
    w.run()
    w.check()
    assert both(w) == 20
    w.clean()


@pytest.mark.parametrize(("prefill", "decode"), [(5, 1), (1, 5)])
def test_nothing_is_held_back_for_what_does_not_happen(world, prefill, decode):
    """Alone, a prompt takes a step a chunk, and an answer one a token."""
    w = world(SIM, device=400, prefill_every=prefill, decode_every=decode)
    w.submit("l" * 160, max_tokens=30)
    w.run()
    w.check()
    assert len([plan for plan in w.plans if plan.rows]) == 10 + 29
    w.clean()


def test_prompts_without_pages_hold_up_no_answer(world):
    """The answers' steps would come every 50th only; but the prompt cannot go on until they have ended."""
    w = world(replace(SIM, windows=(40,), full=False), device=28, decode_every=50, reserve=0.0)
    for letter in "abc":
        w.submit(letter * 100, max_tokens=30)
    w.run()
    w.check()
    w.clean()


def test_several_prompts_share_a_step_as_the_policy_says(world):
    class Even(Arrival):
        def chunks(self, prompts, budget, view):
            return [budget // len(prompts)] * len(prompts)

    w = world(replace(SIM, chunk=64), device=400, policy=Even())
    rids = [w.submit(letter * 400, max_tokens=1) for letter in "abc"]
    w.turn(12)
    under_way = [plan for plan in w.plans if len(plan.rows) == 3]
    assert len(under_way) > 5
    assert {tuple(row.count for row in plan.rows) for plan in under_way[1:]} == {(24, 20, 20)}
    w.run()
    w.check(*rids)
    w.clean()


def test_the_oldest_gets_on_whatever_a_policy_says(world):
    class Last(Arrival):
        def chunks(self, prompts, budget, view):
            return [0] * (len(prompts) - 1) + [budget]

    w = world(replace(SIM, chunk=32), device=400, policy=Last())
    first = w.submit("f" * 200, max_tokens=1)
    later = [w.submit(f"{n}" * 200, max_tokens=1) for n in range(3)]
    w.run()
    w.check(first, *later)
    assert max(gaps(w, first, decode=False)) == 1
    assert w.brain.counters.policy_faults == 0
    w.clean()


@pytest.mark.parametrize(
    "answer", [None, [], [5], [-1, 10], ["a", "b"], [0.5, 1], lambda prompts: [1] * (len(prompts) + 1)]
)
def test_chunks_that_are_none_are_counted_and_the_first_goes_first(world, answer):
    class Confused(Arrival):
        def chunks(self, prompts, budget, view):
            return answer(prompts) if callable(answer) else answer

    w = world(SIM, device=400, policy=Confused())
    rids = [w.submit(letter * 200, max_tokens=1) for letter in "ab"]
    w.run()
    w.check(*rids)
    assert w.brain.counters.policy_faults
    assert "chunks" in w.brain.counters.last_fault
    w.clean()


class Prompt:
    def __init__(self, planned, target):
        self.planned, self.target = planned, target


@given(
    page=st.sampled_from([1, 4, 16]),
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 300), st.integers(0, 400)), min_size=1, max_size=6),
    pages=st.integers(1, 40),
    rest=st.integers(0, 15),
)
def test_a_split_spends_what_there_is_and_no_more(page, lengths, pages, rest):
    budget = pages * page + rest % page
    seats = [Prompt(start * page, start * page + length) for start, length, _ in lengths]
    shares = split(seats, [wish for _, _, wish in lengths], budget, page)
    left = budget - sum(shares)
    assert left >= 0
    assert shares[0] >= min(page, seats[0].target - seats[0].planned)
    for seat, share in zip(seats, shares, strict=True):
        end = seat.planned + share
        assert share >= 0
        assert end == seat.target or end % page == 0
        assert end == seat.target or left < min(page, seat.target - end), "left for nobody"
