"""A runner whose saves end when they like: behind later steps, out of order, at once, or never."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import pytest

from stepwell.abc.runner import PageCopy, Step, StepPlan
from stepwell.builtin.sim import SimConfig, SimRunner
from stepwell.engine.actions import SavesEnded

SIM = SimConfig(token_bytes=8, eos_every=0, chunk=16)


class LateSaves(SimRunner):
    """Copies a save's bytes when it ends, so that a page given away before would be saved with another's tokens.

    `after`: times that it is asked until a save ends, drawn for each; `fails`: one page in so many is not saved.
    """

    late_saves = True
    after: tuple[int, ...] = (3,)
    fails = 0

    def __init__(self, config: SimConfig, context: object = None) -> None:
        super().__init__(config, None)
        self.flying: dict[int, tuple[int, PageCopy]] = {}
        self._asked = 0
        self._luck = random.Random(3)
        self._pages = count(1)

    def launch(self, plan: StepPlan) -> Step:
        for save in plan.saves:
            assert save.id not in self.flying
            self.flying[save.id] = self._asked + self._luck.choice(self.after), save
        return super().launch(replace(plan, saves=()))

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        self._asked += 1
        due = [id for id, (when, _) in self.flying.items() if when <= self._asked]
        self._luck.shuffle(due)
        return {id: self._save(self.flying.pop(id)[1]) for id in due}

    def _save(self, save: PageCopy) -> tuple[bool, ...]:
        assert self._memory is not None
        came = []
        for device, host in zip(save.device.tolist(), save.host.tolist(), strict=True):
            came.append(not self.fails or next(self._pages) % self.fails > 0)
            if came[-1]:
                self._memory.save(save.group, device, host)
        return tuple(came)


class Scattered(LateSaves):
    after = (1, 2, 7, 60)


class Faulty(LateSaves):
    after = (1, 9)
    fails = 5


class AtOnce(LateSaves):
    """Copies when the plan is launched: before the steps in flight have done anything."""

    def launch(self, plan: StepPlan) -> Step:
        for save in plan.saves:
            self.flying[save.id] = self._asked, save
            self._save(save)
        return SimRunner.launch(self, replace(plan, saves=()))

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        ended = {id: (True,) * len(save.device) for id, (_, save) in self.flying.items()}
        self.flying.clear()
        return ended


class Never(LateSaves):
    after = (10**9,)


def traffic(w, requests=40, seed=1):
    """Prompts that share beginnings, on a device too small to keep them; some are aborted on their way."""
    luck = random.Random(seed)
    aborted = set()
    for number in range(requests):
        shared = "a beginning that many share, " * luck.randrange(3)
        rid = w.submit(f"{shared}and request {number % 9}", max_tokens=luck.randrange(1, 12))
        w.turn(luck.randrange(4))
        if luck.random() < 0.2:
            w.abort(rid)
            aborted.add(rid)
    w.run()
    w.check(*(rid for rid in w.requests if rid not in aborted or w.last(rid).finish != "abort"))


@pytest.mark.parametrize("runner", [LateSaves, Scattered, Faulty, AtOnce])
@pytest.mark.parametrize("windows", [(), (6,)])
def test_whenever_saves_end_answers_are_right_and_nothing_stays_owned(world, runner, windows):
    w = world(replace(SIM, windows=windows), device=28, host=120, lag=1, runner=runner)
    traffic(w)
    assert w.copied["save"] > 30
    assert w.copied["load"] > 4, "nothing came back from host, so nothing was proven"
    w.clean()


@pytest.mark.parametrize("runner", [LateSaves, Scattered, Faulty])
def test_storage_behind_late_saves(world, runner):
    w = world(SIM, device=34, host=44, lag=1, runner=runner, storage={}, depth=3)
    traffic(w, seed=2)
    assert w.store
    w.clean()


def test_b043_a_save_is_planned_only_for_pages_whose_step_has_completed(world):
    w = world(replace(SIM, chunk=8), device=60, host=200, lag=2, runner=AtOnce, depth=3)
    first = w.submit("a prompt of many chunks, each of them a step of its own", max_tokens=20)
    tables: dict[int, dict[int, int]] = {}
    written: dict[int, set[int]] = {}
    seen = saved = 0
    while not w.brain.idle or w.news or not seen:
        w.turn()
        for plan in w.plans[seen:]:
            for edit in plan.tables:
                tables.setdefault(edit.slot, {}).update(enumerate(edit.pages.tolist(), edit.first))
            written[plan.number] = {
                tables[row.slot][at // w.page] for row in plan.rows for at in range(row.start, row.start + row.count)
            }
            done = {result.number for result in w.results}
            wet = set().union(*(pages for number, pages in written.items() if number not in done))
            for save in plan.saves:
                assert not wet & set(save.device.tolist()), "a page that a step in flight writes is saved"
                saved += len(save.device)
        seen = len(w.plans)
    assert saved > 10
    w.check(first)
    w.cache.flush()
    w.clean()


def test_pages_on_their_way_are_bounded_and_new_saves_wait(world):
    w = world(SIM, device=200, host=200, runner=Never, save_pages_per_step=4)
    for number in range(12):
        w.submit(f"{number:02} is a prompt like no other, long enough for many pages", max_tokens=4)
    w.turn(60)
    assert all(w.last(rid).finish == "length" for rid in w.requests), "nobody waits for a save"
    w.check()
    assert w.brain.stats()["save_pages_in_flight"] == 8
    assert not w.brain.idle
    w.runner.after = (1,)
    w.runner.flying = {id: (0, save) for id, (_, save) in w.runner.flying.items()}
    w.run()
    assert w.copied["save"] > 100
    w.clean()


def test_a_save_that_never_ends_keeps_its_pages_and_holds_up_nobody_who_fits_beside(world):
    w = world(SIM, device=24, host=100, runner=Never, save_pages_per_step=2)
    rids = [w.submit(f"prompt {number} of forty characters in all...", max_tokens=4) for number in range(8)]
    w.turn(200)
    w.check(*rids)
    assert w.brain.stats()["save_pages_in_flight"] == 4
    w.cache.audit()


def test_a_request_alone_waits_for_the_saves_that_hold_its_pages(world):
    w = world(SIM, device=12, host=100, lag=0, runner=Never)
    first = w.submit("forty characters for ten whole pages....", max_tokens=4)
    w.turn(12)
    assert w.last(first).finish == "length"
    held = w.brain.stats()["save_pages_in_flight"]
    assert held >= 10
    second = w.submit("other forty characters, which fit alone.", max_tokens=4)
    w.turn(20)
    assert second not in w.outputs, "it neither ran nor failed"
    w.runner.after = (1,)
    w.runner.flying = {id: (0, save) for id, (_, save) in w.runner.flying.items()}
    w.run()
    w.check()
    w.clean()


def test_two_that_run_wait_once_for_saves_before_one_gives_way(world):
    w = world(SIM, device=16, host=100, lag=0, runner=Scattered)
    for number in range(3):
        w.submit(f"prompt number {number}...", max_tokens=30)
    w.run()
    w.check()
    w.clean()


def test_an_abort_leaves_the_save_its_pages(world):
    w = world(SIM, device=40, host=40, lag=0, runner=Never)
    rid = w.submit("a prompt that is saved while it is aborted", max_tokens=50)
    w.turn(8)
    held = w.brain.stats()["save_pages_in_flight"]
    assert held > 0
    w.abort(rid)
    w.turn(3)
    assert w.last(rid).finish == "abort"
    w.cache.flush()
    w.cache.audit()
    assert w.brain.stats()["save_pages_in_flight"] >= held
    w.runner.after = (1,)
    w.runner.flying = {id: (0, save) for id, (_, save) in w.runner.flying.items()}
    w.run()
    w.clean()


def test_a_save_of_a_step_that_failed_ends_like_any_other(world):
    w = world(replace(SIM, fail_steps=(4, 5, 6)), device=60, host=60, runner=Scattered)
    w.submit("a prompt of several chunks with steps that fail", max_tokens=12)
    w.run()
    w.check()
    assert w.copied["save"] > 0
    w.clean()


def test_an_unknown_save_is_a_counted_fault(world):
    w = world(SIM, device=40, host=40, runner=LateSaves)
    w.submit("anything that is long enough to be saved", max_tokens=2)
    w.run()
    moved = w.brain.counters.bytes_saved
    w.brain.tick(1e6, [SavesEnded({987: (True,), 1: (True,)})])
    assert w.brain.counters.unknown_saves == 2
    assert w.brain.counters.bytes_saved == moved
    w.clean()


def test_a_save_that_says_too_much_or_too_little(world):
    class Loose(LateSaves):
        def _save(self, save: PageCopy) -> tuple[bool, ...]:
            return super()._save(save)[:-1] if save.id % 2 else (*super()._save(save), True)

    w = world(SIM, device=34, host=100, runner=Loose)
    traffic(w, requests=16)
    assert w.brain.counters.bytes_saved <= w.copied["save"] * w.page * SIM.token_bytes
    w.clean()


def test_a_load_that_says_too_much_counts_its_own_pages_alone(world):
    class Loose(SimRunner):
        def _copy(self, copy: PageCopy, fails: bool, move: Callable[[int, int, int], None]) -> tuple[bool, ...]:
            return (*super()._copy(copy, fails, move), True)

    w = world(SIM, device=28, host=120, lag=1, runner=Loose)
    traffic(w)
    assert w.copied["load"] > 0
    assert w.brain.counters.bytes_loaded == w.copied["load"] * w.page * SIM.token_bytes


def test_a_runner_without_late_saves_has_none(world):
    w = world(SIM)
    assert not w.runner.late_saves
    assert w.runner.saved() == {}
