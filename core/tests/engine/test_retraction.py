"""Who gives way takes its work to host and goes on from there; nobody gives way for ever."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.write import Decision, WritePolicy
from stepwell.builtin.sim import SimConfig, SimRunner
from stepwell.cache.node import DEVICE
from stepwell.schedule.job import Job

SIM = SimConfig(token_bytes=8, eos_every=0, chunk=64)
HYBRID = replace(SIM, windows=(20, 5))
WINDOWS = replace(SIM, windows=(30,), full=False)
ANSWER, PROMPT, REQUESTS = 70, 40, 10


class Never(WritePolicy):
    def decide(self, edge, cause, uses):
        return Decision.NEVER


class Nothing(RetentionPolicy):
    def keep(self, length, page, branches):
        return ()


class Latest(SchedulePolicy):
    """Always takes from the latest, however often it gave way."""

    def order(self, waiting, view):
        return waiting

    def victim(self, running, view):
        return max(running, key=lambda request: request.order)


def crowd(w, requests=REQUESTS, answer=ANSWER, prompt=PROMPT):
    return [w.submit(chr(65 + n) * prompt, max_tokens=answer) for n in range(requests)]


def share(w):
    return w.brain.counters.recomputed_tokens / w.brain.counters.computed_tokens


def finish(w, limit=9000):
    w.run(limit)
    w.check()
    w.clean()
    assert w.brain.stats()["failed"] == 0


@pytest.mark.parametrize("save", ["never", "through"])
@pytest.mark.parametrize("sim", [SIM, HYBRID, WINDOWS], ids=["full", "hybrid", "windows"])
@pytest.mark.parametrize(("page", "tokens"), [(1, 300), (4, 260), (16, 400)])
def test_an_overcommitted_pool_computes_at_most_a_twentieth_again(world, sim, page, tokens, save):
    """What is lost is less than a page for each time that somebody gives way."""
    if not sim.full:
        tokens //= 3
    device = tokens // page + 4
    write = Never() if save == "never" else None
    w = world(sim, device=device, host=4 * device, page=page, write=write, max_running=16, reserve=0.0)
    crowd(w)
    finish(w)
    counters = w.brain.counters
    assert counters.retractions or not sim.full, "the pool was not short"
    assert share(w) <= 0.05
    assert counters.recomputed_tokens < page * max(1, counters.retractions)
    assert counters.computed_tokens - counters.recomputed_tokens == REQUESTS * (PROMPT + ANSWER - 1)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("sim", [SIM, HYBRID], ids=["full", "hybrid"])
def test_without_a_host_tier_everybody_finishes_too(world, sim, depth):
    w = world(replace(sim, depth=depth), device=50, lag=depth - 1, max_running=16, reserve=0.0)
    crowd(w)
    finish(w)
    assert w.brain.counters.retractions
    assert w.brain.counters.rescued_tokens == 0


def test_waves_of_long_answers_recompute_little(world):
    """Many short answers make room look plentiful; then long ones come, wave upon wave."""
    w = world(SIM, device=80, host=480, write=Never(), max_running=16, reserve=0.0)
    for _ in range(2):
        for number in range(40):
            w.submit(f"short{number:02}", max_tokens=2)
        w.turn(30)
        crowd(w, 6, 200, 12)
        w.turn(120)
    finish(w)
    assert w.brain.counters.retractions > 3
    assert share(w) <= 0.05


def test_what_a_rescue_saves_is_loaded_when_its_request_is_back(world):
    w = world(SIM, device=40, host=80, write=Never(), reserve=0.0)
    crowd(w, 2, 80, 40)
    finish(w)
    assert w.brain.counters.rescued_tokens > 0
    assert w.copied["load"] > 0
    assert w.cache.stats.rescued * w.page == w.brain.counters.rescued_tokens
    assert w.cache.stats.rescue_dropped == 0


@pytest.mark.parametrize("sim", [SIM, HYBRID], ids=["full", "hybrid"])
@pytest.mark.parametrize("host", [80, 320])
def test_others_do_not_take_from_host_what_a_request_comes_back_for(world, sim, host):
    """A stream of others is written through to a host tier no larger than the device."""
    draw = random.Random(1)
    w = world(sim, device=80, host=host, reserve=0.0, max_running=16, audit=False)
    for turn in range(30):
        for number in range(2):
            prompt = f"{turn:03}{number}"[::-1] + "x" * draw.randrange(5, 60)
            w.submit(prompt, max_tokens=draw.choice((2, 2, 2, 2, 150)))
        w.turn(10)
    finish(w)
    assert w.brain.counters.retractions > 3
    assert share(w) <= 0.05


def test_a_host_tier_too_small_takes_as_much_of_the_prefix_as_it_can(world):
    w = world(SIM, device=40, host=6, write=Never(), reserve=0.0)
    crowd(w, 2, 80, 40)
    finish(w)
    assert w.cache.stats.rescued >= 6
    assert w.cache.stats.rescue_dropped > 0
    assert w.brain.counters.recomputed_tokens > 0


def test_colder_pages_on_host_make_room_for_a_rescue(world):
    w = world(SIM, device=40, host=40, reserve=0.0)
    w.submit("old" * 40, max_tokens=1)
    w.run()
    assert w.cache.stats.saved == 30
    crowd(w, 2, 80, 40)
    finish(w)
    assert w.brain.counters.retractions
    assert w.cache.stats.rescue_dropped == 0
    assert share(w) <= 0.05


@pytest.mark.parametrize("host", [0, 200])
def test_a_window_that_retention_would_not_keep_is_there_when_its_request_is_back(world, host):
    """With a host tier it comes from there."""
    w = world(HYBRID, device=50, host=host, write=Never(), retain=Nothing(), reserve=0.0)
    crowd(w, 3, 80, 40)
    finish(w)
    assert w.brain.counters.retractions
    if host:
        assert share(w) <= 0.05
        assert w.copied["load"] > 0
    else:
        assert w.brain.counters.resumed_tokens > 0


class Second(SchedulePolicy):
    """Takes from whoever is on its prompt."""

    def order(self, waiting, view):
        return waiting

    def victim(self, running, view):
        return max(running, key=lambda request: (request.unplanned > 0, request.order))


def test_a_chunk_in_flight_is_not_thrown_away(world):
    """Its request leaves when the chunk has landed, and its pages count."""
    sim = replace(SIM, chunk=8, depth=2)
    w = world(sim, device=40, host=80, policy=Second(), reserve=0.0, lag=1)
    w.submit("a" * 40, max_tokens=70)
    w.turn(23)
    late = w.submit("b" * 90, max_tokens=4)
    while not (leaving := list(w.brain._batch._leaving)):
        w.turn()
    assert (leaving[0].rid, leaving[0].planned - leaving[0].done) == (late, 8), "a chunk is in flight"
    finish(w)
    assert w.brain.counters.retractions == 1
    assert w.brain.counters.recomputed_tokens == w.brain.counters.surplus_tokens == 0


def test_who_gives_way_may_end_before_it_has_left(world):
    """By its last token, by an abort, or by a step that fails."""
    for event in ("abort", "fail", "none"):
        sim = replace(SIM, depth=2, fail_steps=tuple(range(20, 90, 7)) if event == "fail" else ())
        w = world(sim, device=30, host=60, reserve=0.0, lag=1, step_retries=99)
        rids = crowd(w, 4, 50, 16)
        gone = []
        while not w.brain.idle or w.news:
            if event == "abort" and (leaving := list(w.brain._batch._leaving)):
                gone.append(leaving[0].rid)
                w.abort(gone[-1])
            w.turn()
            assert w.turns < 3000
        w.check(*(rid for rid in rids if rid not in gone))
        w.clean()
        assert event != "abort" or gone


def test_what_is_held_on_host_is_let_go_of_when_its_request_is_aborted(world):
    w = world(SIM, device=30, host=60, reserve=0.0)
    rids = crowd(w, 4, 50, 16)
    while not (waiting := [job for job in w.brain._jobs.values() if job.rescue]):
        w.turn()
    w.abort(waiting[0].rid)
    w.run()
    w.check(*(rid for rid in rids if rid != waiting[0].rid))
    w.clean()


@pytest.mark.parametrize("fails", [(), tuple(range(1, 40, 2))])
def test_a_rescue_may_fail(world, fails):
    w = world(replace(SIM, fail_saves=fails), device=40, host=80, write=Never(), reserve=0.0)
    crowd(w, 3, 80, 40)
    finish(w)
    assert (w.cache.stats.save_failed > 0) == bool(fails)


class Slow(SimRunner):
    """Saves end many steps behind their own, and copy only then."""

    late_saves = True

    def __init__(self, config, context=None):
        super().__init__(config, None)
        self.flying = []

    def launch(self, plan):
        self.flying += [[12, save] for save in plan.saves]
        return super().launch(replace(plan, saves=()))

    def saved(self):
        ended = {}
        for entry in list(self.flying):
            entry[0] -= 1
            if entry[0] <= 0:
                self.flying.remove(entry)
                save = entry[1]
                for device, host in zip(save.device.tolist(), save.host.tolist(), strict=True):
                    self._memory.save(save.group, device, host)
                ended[save.id] = (True,) * len(save.device)
        return ended


@pytest.mark.parametrize("write", [Never, None])
def test_pages_of_a_rescue_stay_until_they_are_on_host(world, write):
    """And nobody else gives way meanwhile."""
    w = world(SIM, device=40, host=200, write=write and write(), reserve=0.0, runner=Slow)
    crowd(w, 4, 60, 30)
    finish(w)
    counters = w.brain.counters
    assert counters.retractions
    assert share(w) <= 0.05
    assert counters.retractions <= 8


@pytest.mark.parametrize("most", [0, 1, 3])
def test_nobody_gives_way_more_often_than_it_must(world, most):
    """Who did so `most` times stays while there is anybody else; of those that are left the latest goes."""
    w = world(SIM, device=60, host=240, policy=Latest(), reserve=0.0, max_retractions=most)
    jobs: list[Job] = []
    taken: list[tuple[Job, list[Job]]] = []
    retract = w.brain._room._retract

    def watched(seat, cause):
        taken.append((seat.job, [other.job for other in w.brain._batch.seats]))
        retract(seat, cause)

    w.brain._room._retract = watched
    crowd(w, 12, 90, 20)
    finish(w)
    assert taken
    for job, running in taken:
        jobs.append(job)
        before = jobs[:-1].count(job)
        if before >= most:
            assert all(jobs[:-1].count(other) >= most for other in running)
            assert job.order == max(other.order for other in running)


def test_what_was_searched_for_pages_in_vain_is_not_searched_again_before_some_may_be_free(world):
    """Hundreds of rows may lack a page in one plan, and each would look at all that is held."""
    w = world(SIM, device=40, reserve=0.0)
    w.submit("h" * 60, max_tokens=20)
    w.turn(3)
    evictor = w.cache._evictor
    searches: list[tuple[int, int]] = []
    unpark = evictor._unpark
    evictor._unpark = lambda *place: searches.append(place) or unpark(*place)
    assert [evictor.evict(DEVICE, 0, 1) for _ in range(5)] == [0] * 5, "all is held"
    assert len(searches) == 1
    w.run()
    assert evictor.evict(DEVICE, 0, 1) == 1
    assert len(searches) > 1
    w.clean()
