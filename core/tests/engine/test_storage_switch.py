"""Storage that comes, goes, hangs and is cleared under requests: same answers, nothing leaked, nobody held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stepwell.builtin.sim import SimConfig
from stepwell.cache.audit import nodes
from stepwell.cache.chain import digests
from stepwell.cache.keys import page_keys
from stepwell.cache.node import HOST
from stepwell.engine.actions import (
    Action,
    Attached,
    Cleared,
    Detached,
    Fetch,
    FetchEnded,
    FetchMoved,
    Queried,
    Query,
    StopFetch,
    Store,
    StoreEnded,
)
from stepwell.schedule.fetching import State
from stepwell.types import DONE, MISSING, PageKey, PageResult

PATIENCE = 6


@dataclass(eq=False)
class Backend:
    """A storage; each operation stays with the one that it was given to."""

    pages: dict[PageKey, bytes] = field(default_factory=dict)
    hangs: bool = False


@dataclass(eq=False)
class Under:
    """An operation under way."""

    backend: Backend
    action: Query | Fetch | Store
    stopped: bool = False
    results: list[list[PageResult]] = field(default_factory=list)


@pytest.fixture
def switched(world: Any, patient: Any) -> Any:
    """A world whose storage can be switched."""

    class Switched(world):  # type: ignore[misc]
        def __init__(self, backend: Backend | None = None, **options: Any) -> None:
            options.setdefault("prefetch", patient(patience=PATIENCE))
            super().__init__(storage=None if backend is None else {}, **options)
            self.backend = backend
            self.left: list[Backend] = []
            self._number = 0

        def attach(self, backend: Backend) -> None:
            self.detach()
            self.news.insert(int(bool(self.news) and isinstance(self.news[0], Detached)), Attached())
            self.backend = backend

        def detach(self) -> None:
            if self.backend is not None:
                self.left.append(self.backend)
                self.news.insert(0, Detached())
                self.backend = None

        def clear(self) -> None:
            self.backend.pages.clear()
            self.news.insert(0, Cleared())

        def thaw(self) -> None:
            for backend in (*self.left, *([self.backend] if self.backend else [])):
                backend.hangs = False

        def stored(self) -> int:
            return sum(int(pool.stored.sum()) for pool in self.cache._pools[HOST])

        def check_marks(self) -> None:
            """What is marked as stored is in the storage that there is now."""
            pages = self.backend.pages if self.backend is not None else {}
            for node in nodes(self.cache._index):
                for group, spec in enumerate(self.sim.groups):
                    ids = node.run(group).ids(HOST, node.pages) if node.runs[group] is not None else ()
                    keys = page_keys(digests(node, self.page), spec)
                    marks = self.cache._pools[HOST][group].stored
                    assert all(key in pages for key, id in zip(keys, ids, strict=False) if id >= 0 and marks[id])

        def _carry_out(self, action: Action) -> None:
            match action:
                case Query() | Fetch() | Store():
                    assert self.backend is not None, "asked of a storage that is not there"
                    self._number += 1
                    self.moving[self._number] = Under(self.backend, action)
                case StopFetch(id=id):
                    for under in self.moving.values():
                        if isinstance(under.action, Fetch) and under.action.op.id == id:
                            under.stopped = True
                case _:
                    super()._carry_out(action)

        def _move(self) -> None:
            for number, under in list(self.moving.items()):
                if not under.backend.hangs and self._step(under):
                    del self.moving[number]

        def _step(self, under: Under) -> bool:
            pages = under.backend.pages
            match under.action:
                case Query(rid=rid, plan=plan):
                    self.news.append(Queried(rid, [[key in pages for key in keys] for keys in plan.keys]))
                case Store(op=op):
                    for key, slot in zip(op.keys, op.host.tolist(), strict=True):
                        pages[key] = bytes(self._slot(op.group, slot))
                    self.news.append(StoreEnded(op.id, [DONE] * len(op.keys)))
                case Fetch(op=op):
                    if len(under.results) < len(op.reads) and not under.stopped:
                        under.results.append(self._pages(pages, *op.reads[len(under.results)]))
                        self.news.append(FetchMoved(op.id, sum(map(len, under.results))))
                        return False
                    self.news.append(FetchEnded(op.id, under.results))
            return True

        def _pages(
            self, pages: dict[PageKey, bytes], group: int, keys: Sequence[PageKey], host: np.ndarray
        ) -> list[PageResult]:
            results: list[PageResult] = []
            for key, slot in zip(keys, host.tolist(), strict=True):
                page = pages.get(key)
                if page is not None:
                    self._slot(group, slot)[:] = page
                results.append(MISSING if page is None else DONE)
            return results

        def finish(self) -> None:
            """All that hangs returns, all that was asked is answered, and nothing is owned afterwards."""
            self.thaw()
            self.run()
            fetches, stores = self.brain._fetches, self.brain._stores
            assert not (fetches._former or fetches._moving or fetches._queries or fetches._planned or fetches.pages)
            assert not (stores._former or stores.open or stores.pages)
            self.clean()

    return Switched


def full_of(switched: Any, *prompts: str) -> Backend:
    """A storage that holds these prompts."""
    w = switched(Backend(), page=4, host=256, device=256)
    for prompt in prompts:
        w.submit(prompt, max_tokens=1)
        w.run()
    return w.backend


# --- attach ----------------------------------------------------------------------------------------------------------


def test_what_was_there_before_is_stored_once_storage_comes(switched: Any) -> None:
    w = switched(page=4, host=256, device=256)
    for letter in "abcdefg":
        w.submit(letter * 40, max_tokens=2)
    w.run()
    assert not w.stored()
    backend = Backend()
    w.attach(backend)
    w.turn(3)
    assert not w.cache.catching_up
    w.run()
    assert len(backend.pages) == w.stored() == 7 * 10
    w.finish()


def test_a_later_storage_gets_what_an_earlier_one_had(switched: Any) -> None:
    first, second = Backend(), Backend()
    w = switched(first, page=4, host=256, device=256)
    w.submit("a" * 40, max_tokens=2)
    w.run()
    w.detach()
    w.turn()
    assert not w.stored()
    w.attach(second)
    w.run()
    assert second.pages == first.pages
    w.finish()


def test_requests_fetch_from_the_storage_that_came(switched: Any) -> None:
    w = switched(page=4, host=64)
    before = w.submit("a" * 32 + "!")
    w.run()
    assert w.last(before).cached.total == 0
    w.cache.flush()
    w.attach(full_of(switched, "a" * 32))
    w.turn()
    after = w.submit("a" * 32 + "!")
    w.run()
    w.check()
    assert w.last(after).cached.storage == 32
    w.finish()


# --- detach ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(8))
def test_who_waits_for_a_storage_that_goes_runs_without_it(switched: Any, turns: int) -> None:
    w = switched(full_of(switched, "a" * 64), page=4, host=64)
    rid = w.submit("a" * 64 + "!")
    follower = w.submit("a" * 64 + "?")
    w.turn(turns)
    w.detach()
    w.turn(3)
    assert not any(job.fetch and not job.fetch.settled and job.fetch.state is not State.STOPPING
                   for job in w.brain._jobs.values())  # fmt: skip
    w.run()
    w.check(rid, follower)
    w.finish()


def test_a_hung_read_keeps_its_pages_and_nothing_else(switched: Any, patient: Any) -> None:
    hung = full_of(switched, "a" * 64)
    w = switched(hung, page=4, host=64, prefetch=patient(patience=1e9, max_pages=20))
    rid = w.submit("a" * 64 + "!")
    while not w.brain.stats()["fetch_pages_in_flight"]:
        w.turn()
    hung.hangs = True
    w.attach(full_of(switched, "b" * 64))
    w.turn(40)
    assert w.last(rid).finish == "length", "it does not wait for what hangs"
    assert w.brain.stats()["fetch_pages_in_flight"] == 0, "nor do others have less to fetch with"
    other = w.submit("b" * 64 + "!")
    w.turn(40)
    assert w.last(other).cached.storage == 64
    assert sum(len(ids) for ids in w.cache._fetcher.copying(0)) == 16, "the call may still write them"
    w.check()
    assert w.brain.idle is not bool(w.brain._jobs)
    w.finish()


def test_nobody_waits_for_another_ones_hung_read(switched: Any, patient: Any) -> None:
    hung = full_of(switched, "a" * 64)
    w = switched(hung, page=4, host=64, prefetch=patient(patience=1e9))
    w.submit("a" * 64 + "!")
    follower = w.submit("a" * 64 + "?")
    while not w.brain.stats()["fetch_pages_in_flight"]:
        w.turn()
    assert w.brain.counters.fetches_followed == 1
    hung.hangs = True
    w.detach()
    w.turn(40)
    assert w.last(follower).finish == "length"
    w.check()
    w.finish()


def test_a_hung_write_keeps_its_pages_and_nothing_else(switched: Any) -> None:
    hung = Backend(hangs=True)
    w = switched(hung, page=4, host=64, device=64, store_pages=16)
    w.submit("a" * 64, max_tokens=1)
    w.turn(20)
    assert w.brain.stats()["store_pages_in_flight"] == 16
    fresh = Backend()
    w.attach(fresh)
    w.submit("b" * 48, max_tokens=1)
    w.turn(30)
    assert len(fresh.pages) == 12, "b is stored; a is in the hands of the call that hangs"
    hung.hangs = False
    w.turn(3)
    assert w.stored() == 12, "what reached a storage that is gone is not stored"
    again = w.submit("a" * 64 + "!", max_tokens=1)
    w.run()
    w.check(again)
    assert len(fresh.pages) == 28
    w.finish()


def test_pages_from_a_storage_that_went_meanwhile_are_stored_in_the_next(switched: Any) -> None:
    hung = full_of(switched, "a" * 32)
    w = switched(hung, page=4, host=64)
    w.submit("a" * 32 + "!")
    while not w.brain.stats()["fetch_pages_in_flight"]:
        w.turn()
    hung.hangs = True
    fresh = Backend()
    w.attach(fresh)
    hung.hangs = False
    w.run()
    w.check()
    again = w.submit("a" * 32 + "?")
    w.run()
    w.check(again)
    assert len(fresh.pages) >= 8
    w.finish()


# --- clear -----------------------------------------------------------------------------------------------------------


def test_what_was_cleared_is_stored_again_when_it_is_used(switched: Any) -> None:
    w = switched(Backend(), page=4, host=64)
    w.submit("a" * 32, max_tokens=1)
    w.run()
    assert w.stored() == 8
    w.clear()
    w.turn()
    assert not w.stored()
    w.submit("a" * 32 + "!", max_tokens=1)
    w.run()
    assert len(w.backend.pages) == 8
    w.finish()


# --- everything at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(), (6,)])
def test_any_order_of_it_all(switched: Any, windows: tuple[int, ...]) -> None:
    class Machine(RuleBasedStateMachine):
        @initialize(there=st.booleans(), pages=st.sampled_from((12, 40)))
        def start(self, there: bool, pages: int) -> None:
            sim = SimConfig(token_bytes=8, eos_every=0, windows=windows)
            self.world = switched(Backend() if there else None, sim=sim, page=4, device=24, host=pages, store_pages=16)
            self.kept = Backend()

        @rule(letter=st.sampled_from("abc"), pages=st.integers(1, 12), tail=st.sampled_from(("", "!", "?!")))
        def submit(self, letter: str, pages: int, tail: str) -> None:
            self.world.submit(letter * 4 * pages + tail, max_tokens=3)

        @rule(turns=st.integers(1, 12))
        def turn(self, turns: int) -> None:
            self.world.turn(turns)

        @rule(data=st.data())
        @precondition(lambda self: self.world.brain._jobs)
        def abort(self, data: Any) -> None:
            self.world.abort(data.draw(st.sampled_from(sorted(self.world.brain._jobs))))

        @rule(known=st.booleans())
        def attach(self, known: bool) -> None:
            if known and self.world.backend is self.kept:
                return
            self.world.attach(self.kept if known else Backend())
            self.world.turn()

        @rule()
        def detach(self) -> None:
            self.world.detach()
            self.world.turn()

        @rule()
        @precondition(lambda self: self.world.backend is not None)
        def hang(self) -> None:
            self.world.backend.hangs = True

        @rule()
        def thaw(self) -> None:
            self.world.thaw()

        @rule()
        @precondition(lambda self: self.world.backend is not None)
        def clear(self) -> None:
            self.world.clear()
            self.world.turn()

        @invariant()
        def marks(self) -> None:
            if hasattr(self, "world"):
                self.world.check_marks()

        def teardown(self) -> None:
            if hasattr(self, "world"):
                self.world.finish()
                ended = [rid for rid in self.world.requests if self.world.last(rid).finish != "abort"]
                if ended:
                    self.world.check(*ended)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
