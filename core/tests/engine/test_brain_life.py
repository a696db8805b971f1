"""What a request meets between its arrival and its last output."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig
from stepwell.types import Sampling


def sim(**options):
    return SimConfig(**{"token_bytes": 8, "eos_every": 0, **options})


def test_chunks_stay_in_the_budget_and_decodes_go_along(world):
    w = world(sim(chunk=16), page=4)
    first = w.submit("abc", max_tokens=30)
    w.turn(4)
    long = w.submit("l" * 100)
    w.run()
    w.check()
    mixed = [plan for plan in w.plans if {row.tokens is None for row in plan.rows} == {True, False}]
    assert len(mixed) >= 5, "decode rows ride with the chunks"
    chunks = [row.count for plan in w.plans for row in plan.rows if row.tokens is not None and row.count > 3]
    assert max(chunks) == 16
    assert w.finished_at[first] >= w.started_at[long]
    w.clean()


def test_several_prompts_are_under_way_at_once(world):
    w = world(sim(chunk=32), page=4, device=128)
    rids = [w.submit(letter * 20) for letter in "abcd"]
    w.turn()
    assert [row.count for row in w.plans[0].rows] == [20, 12]
    w.run()
    w.check(*rids)


def test_a_step_is_planned_while_another_runs(world):
    w = world(sim(depth=3), lag=2)
    w.submit("abc", max_tokens=20)
    w.turn(3)
    assert len(w.steps) == 2
    assert len(w.plans) >= 3
    w.run()
    w.check()
    w.clean()


def test_a_stop_found_late_drops_the_surplus(world):
    w = world(sim(eos_every=5, depth=3), lag=2)
    rids = [w.submit(f"prompt {number}", max_tokens=60) for number in range(6)]
    w.run()
    w.check()
    assert {w.last(rid).finish for rid in rids} == {"stop"}
    assert w.brain.counters.surplus_tokens > 0
    w.clean()


def test_stop_ids_and_ignore_eos(world):
    w = world(sim(eos_every=3))
    plain = w.submit("question", max_tokens=40)
    on = w.submit("question", max_tokens=40, ignore_eos=True)
    w.run()
    w.check()
    assert w.last(plain).finish == "stop"
    assert w.said(plain)[-1] == 256
    assert w.last(on).finish == "length"
    stop = w.submit("question", max_tokens=40, ignore_eos=True, stop_ids=(w.said(on)[3],))
    w.run()
    w.check(stop)
    assert w.last(stop).finish == "stop"
    w.clean()


def test_outputs_count_and_report(world):
    w = world(page=4, host=64)
    w.submit("a shared beginning")
    w.run()
    rid = w.submit("a shared beginning, and more", max_tokens=5, logprobs=2)
    w.run()
    outputs = w.outputs[rid]
    assert [output.completion_tokens for output in outputs] == [1, 2, 3, 4, 5]
    assert {output.prompt_tokens for output in outputs} == {28}
    assert {output.cached.device for output in outputs} == {16}
    assert all(len(output.logprobs) == len(output.tokens) for output in outputs)
    assert [output.finish for output in outputs] == [None] * 4 + ["length"]


def test_nothing_is_kept_of_a_request_that_asks_for_it(world):
    w = world(page=4, host=64)
    secret = w.submit("a secret of sixteen", store=False, max_tokens=8)
    w.run()
    again = w.submit("a secret of sixteen", max_tokens=8)
    w.run()
    w.check(secret, again)
    assert w.last(again).cached.total == 0
    assert w.brain.counters.follows == 0
    w.clean()


def test_pages_with_an_end_go_when_it_comes(world):
    w = world(page=4)
    w.submit("sixteen tokens!!!", ttl=10.0, max_tokens=1)
    w.run()
    ended = w.turns
    wake = w.brain.next_wake(float(w.turns))
    assert ended < wake <= ended + 10
    probe = w.cache.probe(w.requests["r1"].namespace, w.requests["r1"].tokens)
    assert probe == 16
    while w.turns < wake:
        w.turn()
    assert w.brain.next_wake(float(w.turns)) is None
    assert w.cache.probe(w.requests["r1"].namespace, w.requests["r1"].tokens) == 0
    w.clean()


# --- following -------------------------------------------------------------------------------------------------


def test_followers_get_on_chunk_by_chunk(world):
    w = world(sim(chunk=8), page=4, device=256)
    lead = w.submit("s" * 64)
    w.turn()
    short = w.submit("s" * 16 + "!")
    long = w.submit("s" * 60 + "?")
    w.run()
    w.check()
    assert w.started_at[short] <= w.started_at[lead] + 1
    assert w.last(short).cached.total == 16
    assert w.last(long).cached.total == 60
    assert w.brain.counters.computed_tokens < 64 + 2 * 8 + 3 * 8
    w.clean()


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_follower_leads_when_the_leader_goes(world, turns):
    w = world(sim(chunk=8), page=4, device=256)
    lead = w.submit("s" * 64)
    followers = [w.submit("s" * 60 + letter) for letter in "abc"]
    w.turn(turns)
    w.abort(lead)
    w.run()
    w.check(*followers)
    assert w.brain.counters.computed_tokens <= 64 + 3 * (60 % 4 + 1 + 8) + 16
    w.clean()


def test_a_leader_that_fails_is_followed_by_another(world):
    w = world(sim(chunk=8, fail_steps=(2, 3, 4, 5, 6)), page=4, device=256, step_retries=1)
    w.submit("s" * 64)
    followers = [w.submit("s" * 60 + letter) for letter in "abc"]
    w.run()
    finishes = [w.last(rid).finish for rid in ("r1", *followers)]
    assert finishes.count("error") >= 1
    assert finishes.count("length") >= 1
    w.check(*(rid for rid in followers if w.last(rid).finish == "length"))
    w.clean()


# --- trouble ---------------------------------------------------------------------------------------------------


def test_a_step_that_fails_is_tried_again_and_then_given_up(world):
    w = world(sim(fail_steps=(1, 3)), lag=0, depth=1)
    rid = w.submit("again")
    w.run()
    w.check(rid)
    assert w.brain.counters.step_errors == 2
    w = world(sim(fail_steps=(1, 2, 3)), lag=0, depth=1)
    rid = w.submit("again")
    w.run()
    assert w.last(rid).finish == "error"
    assert "told to fail" in w.last(rid).error
    w.clean()


@pytest.mark.parametrize("tokens", [(), ((),), ((1,), (2,)), ((1, 2),)])
def test_a_result_that_does_not_fit_its_plan_is_a_failed_step(world, tokens):
    w = world(lag=0, depth=1)
    rid = w.submit("again")
    w.turn(2)
    w.news[-1] = replace(w.news[-1], tokens=tokens)
    w.run()
    w.check(rid)
    assert w.brain.counters.step_errors == 1
    w.clean()


@pytest.mark.parametrize("change", [{"tokens": ((1, 2, 3),)}, {"steps": 3, "tokens": ((1, 2, 3),)}, {"steps": 0}])
def test_a_decode_step_that_samples_more_or_less_than_it_was_told_is_a_failed_step(world, change):
    w = world(lag=0, depth=1)
    rid = w.submit("again")
    w.turn(4)
    assert w.plans[-1].rows[0].tokens is None, "a decode row"
    w.news[-1] = replace(w.news[-1], **change)
    w.run()
    w.check(rid)
    assert w.brain.counters.step_errors == 1
    w.clean()


def test_seeds_count_on_over_a_retraction(world):
    w = world(page=4, device=16, reserve=0.0)
    rids = [w.submit(letter * 8, max_tokens=40, temperature=1.0, seed=7) for letter in "abc"]
    w.run()
    w.check(*rids)
    assert w.brain.counters.retractions > 0
    w.clean()


def test_a_retracted_request_finds_its_own_work(world):
    w = world(page=4, device=18, reserve=0.0, depth=1, lag=0)
    rids = [w.submit(letter * 8, max_tokens=40) for letter in "ab"]
    w.run()
    w.check(*rids)
    assert w.brain.counters.retractions > 0
    assert w.brain.counters.resumed_tokens > 0
    w.clean()


def test_a_lone_request_may_use_every_page(world):
    w = world(page=4, device=16)
    whole = w.submit("w" * 30, max_tokens=34)
    others = [w.submit(letter * 30, max_tokens=34) for letter in "xyz"]
    w.run()
    w.check(whole, *others)
    w.clean()


def test_small_requests_pass_a_large_one_but_not_for_ever(world):
    class Impatient(SchedulePolicy):
        max_passes = 5

        def order(self, waiting, view):
            return waiting

    w = world(page=4, device=32, policy=Impatient(), reserve=1.0)
    busy = w.submit("b" * 40, max_tokens=60)
    w.turn(2)
    large = w.submit("l" * 100, max_tokens=4)
    small = []
    for number in range(40):
        small.append(w.submit(f"small{number:03}", max_tokens=2))
        w.turn()
    w.run()
    w.check(busy, large, *small)
    before = sum(w.started_at[rid] < w.started_at[large] for rid in small)
    assert before == 5
    w.clean()


class Broken(SchedulePolicy):
    def order(self, waiting, view):
        raise RuntimeError("no order today")

    def victim(self, running, view):
        return "nobody"


def test_a_policy_that_fails_is_counted_and_everybody_is_served(world):
    w = world(page=4, device=16, policy=Broken(), reserve=0.0)
    rids = [w.submit(letter * 8, max_tokens=40) for letter in "abcd"]
    w.run()
    w.check(*rids)
    assert w.brain.counters.policy_faults > 0
    assert w.brain.counters.retractions > 0
    assert "victim" in w.brain.counters.last_fault or "order" in w.brain.counters.last_fault
    w.clean()


def test_aborts_in_any_state_and_twice(world):
    w = world(max_running=1)
    running, waiting = w.submit("running", max_tokens=40), w.submit("waiting")
    w.abort("unknown")
    w.turn(3)
    for rid in (running, waiting, running, waiting):
        w.abort(rid, "stop")
    w.run()
    assert [w.last(rid).finish for rid in (running, waiting)] == ["stop", "stop"]
    assert w.last(running).completion_tokens == len(w.said(running))
    assert w.said(running) == w.truth(running)[: len(w.said(running))]
    assert w.brain.counters.unknown_aborts == 3
    w.clean()


def test_what_an_abort_leaves_behind_is_a_hit(world):
    w = world(page=4)
    rid = w.submit("0123456789abcdef", max_tokens=100)
    while len(w.said(rid)) < 20:
        w.turn()
    w.abort(rid, "stop")
    w.run()
    said = bytes(w.said(rid)).decode()
    follow_up = w.submit("0123456789abcdef" + said + " and then?")
    w.run()
    w.check(follow_up)
    assert w.last(follow_up).cached.total >= 32
    w.clean()


# --- horizon ---------------------------------------------------------------------------------------------------


def test_a_horizon_spans_many_steps_when_nothing_can_change(world):
    w = world(sim(max_steps=64))
    rids = [w.submit(f"prompt {number}", max_tokens=41) for number in range(3)]
    w.run()
    w.check(*rids)
    assert max(plan.horizon for plan in w.plans) >= 38
    assert len(w.plans) < 6
    w.clean()


def test_a_horizon_cut_short_by_the_runner_goes_on_where_it_ended(world):
    w = world(sim(max_steps=64, eos_every=20))
    limit = iter(range(1, 10**6))
    w.runner.limit = lambda: next(limit) * 1e-3
    rids = [w.submit(f"prompt {number}", max_tokens=60) for number in range(5)]
    w.run()
    w.check(*rids)
    assert {result.steps for result in w.results} - {1}
    assert any(result.steps < plan.horizon for result, plan in zip(w.results, w.plans, strict=False))
    w.clean()


def test_no_horizon_while_somebody_could_start(world):
    w = world(sim(max_steps=64, chunk=4), page=4)
    w.submit("running", max_tokens=50)
    w.turn(3)
    late = w.submit("late comer")
    w.run()
    w.check(late)
    follow = next(at for at, plan in enumerate(w.plans) for opened in plan.opens if len(opened.prompt) == 40)
    assert all(plan.horizon == 1 for plan in w.plans[follow : follow + 2])
    w.clean()


def test_sampling_is_what_the_runner_gets(world):
    w = world()
    rid = w.submit("hello", temperature=0.5, seed=3, max_tokens=4)
    w.run()
    opened = w.plans[0].opens[0]
    assert opened.sampling == Sampling(temperature=0.5, seed=3, max_tokens=4)
    assert opened.generated == 0
    w.check(rid)
