"""Faults that were reported of other systems, as scenarios for this one."""

from __future__ import annotations

import math

import pytest

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig
from stepwell.engine.actions import FetchMoved
from stepwell.schedule.fetching import State
from stepwell.types import Tier


def sim(**options):
    return SimConfig(**{"token_bytes": 8, "eos_every": 0, **options})


class LongestPrefix(SchedulePolicy):
    """Most cached tokens first, with nothing of its own against starvation."""

    def __init__(self, max_passes=64):
        self.max_passes = max_passes

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: -view.cached(request))


def test_b011_a_second_request_in_the_batch_does_not_hit_what_is_not_computed(world):
    for chunk in (1000, 6):
        w = world(sim(chunk=chunk), page=4)
        a, b = w.submit("a" * 13), w.submit("a" * 13)
        w.turn()
        assert len(w.plans[0].opens) == 1, "the second one waits"
        w.run()
        w.check()
        assert w.last(a).cached.total == 0
        assert w.last(b).cached.total == 12
        assert w.brain.counters.follows == 1
        assert w.started_at[b] > w.started_at[a]
        w.clean()


@pytest.mark.parametrize(("page", "cached"), [(1, 7), (4, 4)])
def test_b012_one_token_is_always_computed(world, page, cached):
    w = world(page=page)
    rids = [w.submit("abcdefgh")]
    w.run()
    rids.append(w.submit("abcdefgh"))
    w.run()
    rids.append(w.submit("abcdefgh", max_tokens=1))
    w.run()
    rids += [w.submit("abcdefgh") for _ in range(3)] + [w.submit("zyxwvuts")]
    w.run()
    w.check()
    assert w.last(rids[0]).cached.total == 0
    assert [w.last(rid).cached.total for rid in rids[1:-1]] == [cached] * 5
    counters = w.brain.counters
    prompts = sum(w.last(rid).prompt_tokens for rid in rids)
    decoded = sum(w.last(rid).completion_tokens - 1 for rid in rids)
    assert counters.computed_tokens == prompts + decoded - 5 * cached
    w.clean()


def test_b013_what_is_left_is_worked_out_after_the_match(world):
    w = world(page=4, device=12, reserve=0.0)
    rids = [w.submit("sharedsh" + letter * 6, max_tokens=12) for letter in "abcdef"]
    w.run()
    w.check(*rids)
    assert w.brain.counters.retractions > 0
    for rid in rids:
        assert w.last(rid).cached.total + 6 <= w.last(rid).prompt_tokens
    w.clean()


@pytest.mark.parametrize("page", [1, 4])
def test_b015_chunks_of_an_aborted_request_stay_valid(world, page):
    w = world(sim(chunk=8), page=page, device=48 // page)
    prompt = "abcdefghijklmnopqrstuvwxyz012345"
    a = w.submit(prompt)
    while w.brain.counters.computed_tokens < 16:
        w.turn()
    w.abort(a)
    w.run()
    assert w.last(a).finish == "abort"
    whole = w.brain.counters.computed_tokens
    assert 16 <= whole < 32
    assert w.cache.probe(w.requests[a].namespace, w.requests[a].tokens) == whole
    filler = w.submit("z" * 24, max_tokens=4)
    w.run()
    again = w.submit(prompt)
    w.run()
    w.check(filler, again)
    assert w.last(again).cached.total >= 16
    w.clean()


def test_b029_a_chunk_without_pages_leaves_the_request_where_it_is(world):
    config = sim(windows=(8,), chunk=16)
    w = world(config, page=1, device=(240, 24), reserve=0.0)
    third = w.submit("third", max_tokens=60)
    w.turn(8)
    rids = [w.submit(letter * 60) for letter in "ab"]
    w.run()
    w.check(third, *rids)
    assert all(row.count > 0 for plan in w.plans for row in plan.rows)
    w.clean()


def test_b032_admission_counts_the_window_pages_that_loads_take(world):
    config = sim(windows=(8,), chunk=16)
    w = world(config, page=1, device=(64, 20), host=(128, 128))
    first = w.submit("abcdefghijkl", max_tokens=2)
    w.run()
    filler = w.submit("z" * 50, max_tokens=2)
    w.run()
    runner = w.submit("yyyyyy", max_tokens=40)
    w.turn(4)
    again = w.submit("abcdefghijkl0123456789")
    w.run()
    w.check(first, filler, runner, again)
    assert w.last(again).cached.host > 0
    w.clean()


def test_b040_copies_go_on_while_nobody_waits(world):
    store = {}
    w = world(page=4, host=64, storage=store)
    w.submit("a" * 32, max_tokens=1)
    w.run()
    w.turn(50)
    assert len(store) == 8
    assert w.brain.idle
    assert all(usage.held == 0 for usage in w.cache.usage()[Tier.HOST])
    second = world(page=4, host=64, storage=store)
    rid = second.submit("a" * 32 + "b")
    second.run()
    second.check()
    assert second.last(rid).cached.storage == 32
    second.clean()


def test_b048_a_refused_load_is_recomputed_and_not_reported(world):
    for pages in (1, 3):
        w = world(sim(fail_loads=(1,)), page=4, device=16, host=64)
        prompt = "abcdefghijklmnopqrstuvwx"[: 4 * pages + 8]
        w.submit(prompt)
        w.run()
        w.submit("z" * 50, max_tokens=8)
        w.run()
        again = w.submit(prompt)
        twin = w.submit(prompt + "!")
        w.run()
        w.check()
        assert w.brain.counters.failed_loads == 1
        assert w.last(again).cached.host == 0
        assert w.last(twin).cached.total <= len(prompt)
        w.clean()


def test_b049_a_failed_load_needs_no_other_traffic_to_go_on(world):
    w = world(sim(fail_loads=(1,)), page=4, device=16, host=64)
    w.submit("abcdefghijklmnop")
    w.run()
    w.submit("z" * 50, max_tokens=8)
    w.run()
    begin = w.turns
    again = w.submit("abcdefghijklmnop")
    w.run()  # fails where the world would sleep with work left
    w.check(again)
    assert w.turns - begin < 25
    w.clean()


def test_b055_bytes_moved_are_counted_in_every_direction(world):
    w = world(page=4, device=8, host=64, storage={})
    w.submit("abcdefghijklmnop", max_tokens=1)
    w.run()
    w.submit("z" * 28, max_tokens=4)
    w.run()
    again = w.submit("abcdefghijklmnop!", max_tokens=1)
    w.run()
    counters, page = w.brain.counters, 8 * 4
    assert w.last(again).cached.host == 16
    assert counters.bytes_loaded == w.copied["load"] * page == 4 * page
    assert counters.bytes_saved == w.copied["save"] * page
    assert counters.bytes_stored == len(w.store) * page
    w.clean()


# --- fetches ---------------------------------------------------------------------------------------------------


def stored(World, *prompts, **options):
    """A store that holds these prompts."""
    w = World(page=4, host=256, device=256, storage={}, **options)
    for prompt in prompts:
        w.submit(prompt, max_tokens=1)
        w.run()
    return w.store


def test_b063_the_states_of_a_fetch_are_explicit(world):
    store = stored(world, "a" * 32)
    w = world(page=4, host=64, storage=store, fetch_turns=3)
    rid = w.submit("a" * 32 + "b")
    seen = []
    while not w.outputs:
        w.turn()
        job = w.brain._jobs.get(rid)
        if job is not None and job.fetch is not None:
            seen.append(job.fetch.state)
            assert job.seat is None, "it does not run before the fetch ended"
    assert list(dict.fromkeys(seen)) == [State.QUEUED, State.MOVING]
    w.run()
    w.check()
    assert w.last(rid).cached.storage == 32
    nothing = w.submit("q" * 32)
    w.run()
    w.check(nothing)
    assert w.brain.counters.fetches_revoked == 1
    w.clean()


def test_b064_a_fetch_too_small_to_start_holds_nobody(world, patient):
    store = stored(world, "a" * 8)
    w = world(page=4, host=64, storage=store, prefetch=patient(threshold=16))
    rid = w.submit("a" * 12)
    w.turn()
    assert w.plans, "it runs at once"
    w.run()
    assert w.last(rid).cached.total == 0
    assert w.brain.counters.fetches_skipped == 1
    nothing = w.submit("n" * 32)
    w.turn(2)
    assert any(opened.prompt == w.requests[nothing].tokens for plan in w.plans for opened in plan.opens)
    w.run()
    w.check()
    assert w.brain.stats()["fetch_pages_in_flight"] == 0
    w.clean()


def test_b065_aborts_give_the_budget_of_fetches_back(world, patient):
    store = stored(world, *(letter * 20 for letter in "abcd"), "w" * 32)
    w = world(page=4, host=64, storage=store, prefetch=patient(max_pages=16), max_running=1)
    busy = w.submit("busy", max_tokens=60)
    w.turn(2)
    a = w.submit("a" * 20 + "!")
    w.turn()
    w.abort(a)
    w.news.reverse()  # asked, and aborted before the answer came
    b = w.submit("b" * 20 + "!")
    w.turn(2)  # reading
    assert w.brain.stats()["fetch_pages_in_flight"] == 5
    w.abort(b)
    c = w.submit("c" * 20 + "!")
    w.turn(9)  # there, not used: the only slot is taken
    w.abort(c)
    d = w.submit("d" * 20 + "!")
    w.abort(d)
    w.abort(busy)
    w.run()
    assert w.brain.stats()["fetch_pages_in_flight"] == 0
    last = w.submit("w" * 32 + "!")
    w.run()
    w.check(last)
    assert w.last(last).cached.storage == 32
    w.clean()


@pytest.mark.parametrize("turns", range(12))
def test_b066_an_abort_while_pages_are_read_gives_them_back(world, turns):
    store = stored(world, "a" * 32)
    w = world(page=4, host=16, storage=store, fetch_turns=4)
    rid = w.submit("a" * 32 + "!")
    w.turn(turns)
    w.abort(rid)
    w.run()
    w.clean()
    assert w.cache.usage()[Tier.HOST][0].free == 16


def test_b067_a_fetch_stays_known_until_it_ends(world):
    store = stored(world, "a" * 32)
    w = world(page=4, host=64, storage=store, fetch_turns=4)
    rid = w.submit("a" * 32 + "!")
    fetches = w.brain._fetches
    open_for = 0
    while rid not in w.outputs:
        w.turn()
        open_for += bool(fetches.open)
    assert open_for >= 4
    assert not fetches.open
    w.run()
    w.check()
    assert w.last(rid).cached.storage == 32
    w.clean()


def test_b068_pages_of_a_stopped_fetch_come_back_only_when_the_reader_is_done(world, patient):
    store = stored(world, "a" * 32)
    windows = SimConfig(windows=(6,), token_bytes=8, eos_every=0)
    for config in (None, windows):
        held = stored(world, "a" * 32, sim=config) if config else store
        w = world(config, page=4, host=16, storage=held, prefetch=patient(patience=1.0), fetch_turns=20)
        rid = w.submit("a" * 32 + "!")
        while rid not in w.outputs:
            w.turn()
        assert w.moving, "the read goes on while the request runs"
        reading = sum(moving.op.pages for moving in w.moving.values())
        assert sum(usage.held for usage in w.cache.usage()[Tier.HOST]) >= reading > 0
        w.run()
        w.check()
        w.clean()


def test_nobody_waits_for_a_read_that_hangs(world, patient):
    """However patient the policy is; the pages stay with the reader until it returns."""
    store = stored(world, "a" * 32)
    w = world(page=4, host=32, storage=store, prefetch=patient(), fetch_turns=10**6)
    rids = [w.submit("a" * 32 + mark) for mark in "!?"]
    w.turn(6)
    assert len(w.moving) == 1 and not w.outputs
    (hung,) = w.moving
    w.news.append(FetchMoved(hung, 0, late=True))
    w.turn(4)
    assert w.outputs, "who asked first runs without it"
    late = list(w.moving)
    assert late[0] == hung
    for id in late:
        w.moving[id].due = w.turns
    w.run()
    w.check(*rids)
    w.clean()


def test_a_prefetch_policy_without_pages_in_flight_fetches_nothing(world, patient):
    for bound in (0, -5):
        w = world(page=4, host=32, storage=stored(world, "a" * 32), prefetch=patient(max_pages=bound))
        rid = w.submit("a" * 32 + "!")
        w.run(limit=100)
        w.check(rid)
        w.clean()


def test_b073_a_fetch_over_the_bound_waits_and_is_counted(world, patient):
    store = stored(world, *(letter * 120 for letter in "abcd"))
    w = world(page=4, host=256, device=256, storage=store, prefetch=patient(max_pages=80), fetch_turns=3)
    rids = [w.submit(letter * 120 + "!") for letter in "abcd"]
    most = 0
    while not w.brain.idle or w.news:
        w.turn()
        most = max(most, int(w.brain.stats()["fetch_pages_in_flight"]))
    assert most == 60
    w.check()
    assert [w.last(rid).cached.storage for rid in rids] == [120] * 4
    assert w.brain.counters.fetches_delayed > 0
    w.clean()


def test_b129_every_fetch_is_noticed_when_it_ends(world):
    prompts = [f"{number:02}" * 4 for number in range(20)]
    store = stored(world, *prompts)
    w = world(sim(chunk=8), page=4, host=256, storage=store, max_prefill_tokens=8)
    rids = [w.submit(prompt) for prompt in prompts]
    w.turn(6)
    waiting = [w.brain._jobs[rid] for rid in rids if rid in w.brain._jobs and w.brain._jobs[rid].seat is None]
    assert waiting
    assert all(job.fetch.state is State.DONE for job in waiting)
    assert w.brain.stats()["fetch_pages_in_flight"] == 0
    w.run()
    w.check()
    assert sorted(rids, key=w.started_at.get) == rids
    w.clean()


def test_requests_that_miss_the_same_pages_read_them_once(world):
    store = stored(world, "a" * 32)
    w = world(page=4, host=64, storage=store)
    rids = [w.submit("a" * 32 + letter) for letter in "xyz"]
    reads = []
    while not w.brain.idle or w.news:
        w.turn()
        reads += [action for action in w.actions if type(action).__name__ == "Fetch"]
    w.check()
    assert len(reads) == 1
    assert all(w.last(rid).cached.total == 32 for rid in rids)
    w.clean()


# --- order and admission ---------------------------------------------------------------------------------------


def test_b120_a_request_without_cached_prefix_is_not_passed_for_ever(world):
    w = world(page=4, device=128, policy=LongestPrefix(max_passes=20), max_running=1, depth=1, lag=0)
    w.submit("warm" * 10, max_tokens=1)
    w.run()
    cold = w.submit("cold" * 10, max_tokens=1)
    warm = []
    for number in range(100):
        warm.append(w.submit("warm" * 10 + f"{number:03}", max_tokens=1))
        w.turn()
    w.run()
    w.check()
    before = sum(w.started_at[rid] < w.started_at[cold] for rid in warm)
    assert before == 20
    assert sorted(warm, key=w.started_at.get) == warm, "arrival order among equals"
    w.clean()


def test_b121_what_never_fits_is_refused_at_once_and_what_fits_runs(world):
    w = world(sim(context=4096, depth=1), page=64, device=16, lag=0)
    limit = w.cache.largest()
    assert limit == 1024
    over = w.submit("x" * 1000, max_tokens=25)
    w.turn()
    assert w.last(over).finish == "refused"
    assert str(limit) in w.last(over).error
    assert not w.brain.waiting
    fits = w.submit("x" * 1000, max_tokens=24)
    w.turn(20)
    w.abort(fits)
    w.turn()
    small = w.submit("y" * 10)
    w.turn()
    assert any(opened.prompt == w.requests[small].tokens for opened in w.plans[-1].opens)
    w.run()
    w.check(small)
    whole = w.submit("x" * 1000, max_tokens=24)
    w.run()
    w.check(whole)
    w.clean()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": "abc", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "abc", "max_tokens": 98}, "context of 100"),
        ({"prompt": "abc", "rid": "same"}, "same"),
        ({"prompt": "abc", "priority": "high"}, "priority"),
        ({"prompt": "abc", "priority": math.nan}, "priority"),
        ({"prompt": "abc", "ttl": "x"}, "ttl"),
        ({"prompt": "abc", "ttl": math.nan}, "ttl"),
        ({"prompt": "abc", "ttl": -1.0}, "ttl"),
        ({"prompt": "abc", "ttl": math.inf}, "ttl"),
        ({"prompt": "abc", "seed": 1 << 70}, "seed"),
        ({"prompt": "abc", "temperature": math.nan}, "temperature"),
        ({"prompt": "abc", "repetition_penalty": 0.0}, "repetition_penalty"),
        ({"prompt": "abc", "presence_penalty": math.inf}, "presence_penalty"),
        ({"prompt": "abc", "logprobs": -1}, "logprobs"),
    ],
)
def test_refusals_say_why(world, options, word):
    w = world(sim(context=100))
    w.submit("first", "same", max_tokens=40)
    w.turn()
    rid = w.submit(w.request(options.pop("prompt"), options.pop("rid", "other"), **options))
    with_refusal = w.brain.tick(9.0, w.news)
    w.news = []
    refused = [action for action in with_refusal if getattr(action, "finish", None) == "refused"]
    assert [output.rid for output in refused] == [rid]
    assert word in refused[0].error


def test_a_full_queue_and_a_draining_engine_refuse_for_now(world):
    w = world(max_running=1, max_waiting=2)
    first = w.submit("first", max_tokens=20)
    w.turn()
    rids = [w.submit(letter) for letter in "abc"]
    w.turn()
    assert [w.outputs[rid][-1].finish if rid in w.outputs else None for rid in rids] == [None, None, "refused"]
    assert w.last(rids[2]).later
    w.brain.drain()
    late = w.submit("late")
    w.run()
    assert w.last(late).finish == "refused"
    w.check(first, *rids[:2])
    w.clean()


def test_b123_only_who_has_to_give_way_does_and_the_books_agree(world):
    w = world(page=4, device=24, reserve=0.0)
    a = w.submit("aaaaaaaa", max_tokens=60)
    b = w.submit("bbbbbbbb", max_tokens=20, priority=2)
    w.turn(6)
    c_ = w.submit("cccccccc", max_tokens=40, priority=5)
    w.run()
    w.check(a, b, c_)
    assert w.brain.counters.retractions >= 1
    assert w.finished_at[a] > w.finished_at[b]
    assert w.finished_at[a] > w.finished_at[c_]
    w.clean()


def test_b126_who_is_retracted_is_taken_out_of_the_step(world):
    w = world(page=4, device=6, depth=1, lag=0, reserve=0.0)
    low = w.submit("lowlo", max_tokens=8)
    w.turn()
    high = w.submit("highhigh", max_tokens=8, priority=1)
    while not w.brain.counters.retractions:
        w.turn()  # the more urgent one needs a fourth page; the other has room in its last
    assert len(w.plans[-1].rows) == 1
    assert w.brain._jobs[low].seat is None
    assert w.brain._jobs[low].pages == 0
    w.run()
    w.check(low, high)
    assert w.finished_at[high] < w.finished_at[low]
    assert w.brain.counters.retractions == 1
    w.clean()


def test_b128_the_match_is_made_at_admission(world):
    w = world(page=4, device=10, max_running=1)
    w.submit("abcdefghijklmnop", max_tokens=1)
    w.run()
    other = w.submit("zzzzzzzz", max_tokens=24)  # with 8 pages it evicts two of the four
    r = w.submit("abcdefghijklmnop!", max_tokens=1)
    w.turn()
    w.run()
    w.check(other, r)
    assert w.last(r).cached.total == 8
    w.clean()


def test_b131_recomputed_work_of_its_own_is_no_hit(world):
    w = world(page=4, device=60, reserve=0.0)
    rids = [w.submit(chr(97 + number) * 16, max_tokens=32) for number in range(20)]
    w.run()
    w.check()
    counters = w.brain.counters
    assert counters.retractions > 0
    assert [w.last(rid).cached.total for rid in rids] == [0] * 20
    assert counters.cached_device == counters.cached_host == counters.cached_storage == 0
    assert counters.prompt_tokens == 20 * 16
    assert counters.resumed_tokens > 0
    w.clean()
