"""A backend that does everything wrong costs hits and nothing else."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from stepwell.abc.storage import Storage
from stepwell.builtin.memory import MemoryConfig, MemoryStorage
from stepwell.cache.arena import Arena
from stepwell.cache.cache import FetchOp, FetchPlan, StoreOp
from stepwell.engine.actions import FetchEnded, FetchMoved, Queried, StoreEnded
from stepwell.engine.guard import IoLimits
from stepwell.engine.page_io import LocalPageIO
from stepwell.engine.seal import Damaged
from stepwell.engine.storage_io import StorageIO
from stepwell.types import DONE, Done, Failed, Full, GroupSpec, Missing, PageKey, PageResult, PageViews

PAYLOAD = 16 * 32
PAGES = 64


class Faulty(Storage):
    """Memory storage with a place to go wrong before and after each call."""

    def __init__(self) -> None:
        self.inner = MemoryStorage(MemoryConfig(), None)  # type: ignore[arg-type]
        self.before: Callable[[str, Sequence[PageKey]], None] = lambda verb, keys: None
        self.answer: Callable[[str, list[PageResult]], Sequence[PageResult]] = lambda verb, results: results
        self.calls: list[tuple[str, int]] = []
        self.closed = False
        self.after_close = 0

    def _enter(self, verb: str, keys: Sequence[PageKey]) -> None:
        self.after_close += self.closed
        self.calls.append((verb, len(keys)))
        self.before(verb, keys)

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        self._enter("contains", keys)
        return self.inner.contains(keys)

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        self._enter("read", keys)
        return self.answer("read", self.inner.read(keys, into))

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        self._enter("write", keys)
        return self.answer("write", self.inner.write(keys, pages))

    def delete(self, keys: Sequence[PageKey]) -> None:
        self.inner.delete(keys)

    def close(self) -> None:
        self.closed = True


class Rig:
    """A StorageIO over a faulty storage, and its answers."""

    def __init__(self, **limits: float) -> None:
        self.group = GroupSpec("full", Full(), 32, (0,))
        self.arena = Arena.create((self.group,), 16, (PAGES,))
        self.storage = Faulty()
        self.answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        chosen = {"threads": 2, "batch_pages": 4, "timeout_s": 30.0, "retry_s": 0.001, "pause_s": 0.2} | limits
        pages = LocalPageIO(self.storage, self.arena, (self.group,))
        sizes = [self.arena.regions[0].stride]
        self.io = StorageIO(self.storage, pages, sizes, done=self.answers.put, limits=IoLimits(**chosen))  # type: ignore[arg-type]

    def key(self, number: int) -> PageKey:
        return number.to_bytes(40, "big")

    def fill(self, ids: Sequence[int]) -> None:
        for page, id in zip(self.arena.payloads(0, np.array(ids, np.int32)), ids, strict=True):
            page[:] = bytes([id + 1]) * PAYLOAD

    def bytes_of(self, ids: Sequence[int]) -> list[int]:
        return [page[0] for page in self.arena.payloads(0, np.array(ids, np.int32))]

    def store(self, keys: Sequence[int], ids: Sequence[int] | None = None, id: int = 1) -> list[PageResult]:
        ids = keys if ids is None else ids
        self.fill(ids)
        self.io.store(StoreOp(id, 0, tuple(map(self.key, keys)), np.array(ids, np.int32)))
        return list(self.wait(StoreEnded).results)

    def start_fetch(self, keys: Sequence[int], ids: Sequence[int], id: int = 1) -> None:
        names = tuple(map(self.key, keys))
        plan = FetchPlan(b"n" * 32, b"", (names,), (tuple(range(len(keys))),))
        self.io.fetch(FetchOp(id, plan, ((0, names, np.array(ids, np.int32)),), len(keys)))

    def fetch(self, keys: Sequence[int], ids: Sequence[int]) -> list[PageResult]:
        self.start_fetch(keys, ids)
        return list(self.wait(FetchEnded).results[0])

    def query(self, keys: Sequence[int]) -> list[bool]:
        self.start_query(keys)
        return list(self.wait(Queried).present[0])

    def start_query(self, keys: Sequence[int]) -> None:
        self.io.query("r", FetchPlan(b"n" * 32, b"", (tuple(map(self.key, keys)),), (tuple(range(len(keys))),)))

    def wait(self, kind: type, timeout: float = 10.0) -> object:
        while True:
            answer = self.answers.get(timeout=timeout)
            if isinstance(answer, kind):
                return answer

    def silent(self, kind: type, for_s: float = 0.1) -> bool:
        """Whether no answer of a kind comes for a while."""
        try:
            self.wait(kind, for_s)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    assert made.io.close()
    made.arena.close()


def kinds(results: Sequence[PageResult]) -> list[type]:
    return [next(kind for kind in (Done, Missing, Failed) if isinstance(result, kind)) for result in results]


def third_fails(verb: str, results: list[PageResult]) -> list[PageResult]:
    return [Failed("disk full") if at == 2 else result for at, result in enumerate(results)]


# --- what works --------------------------------------------------------------------------------------------------


def test_pages_come_back_as_they_were(rig: Rig) -> None:
    assert kinds(rig.store(range(10))) == [Done] * 10
    ids = range(20, 30)
    assert kinds(rig.fetch(range(10), ids)) == [Done] * 10
    assert rig.bytes_of(ids) == list(range(1, 11))
    assert rig.query([3, 99, 4]) == [True, False, True]
    stats = rig.io.stats
    assert (stats.pages_written, stats.pages_read) == (10, 10)
    assert stats.bytes_written == stats.bytes_read == 10 * rig.arena.slots(0)[1]


def test_a_fetch_moves_batch_by_batch_and_stops_between_them(rig: Rig) -> None:
    rig.store(range(20))
    gate = threading.Semaphore(0)
    rig.storage.before = lambda verb, keys: gate.acquire() and None
    rig.start_fetch(range(20), range(20, 40), id=7)
    gate.release()
    assert rig.wait(FetchMoved) == FetchMoved(7, 4)
    rig.io.stop_fetch(7)
    for _ in range(20):
        gate.release()
    ended = rig.wait(FetchEnded)
    tried = len(ended.results[0])
    assert 4 <= tried <= 12, "what was under way ends, nothing new starts"
    assert kinds(ended.results[0]) == [Done] * tried
    assert rig.bytes_of(range(20, 20 + tried)) == list(range(1, 1 + tried))
    assert rig.silent(FetchEnded), "a fetch ends once"


def test_several_fetches_and_stores_run_at_once(rig: Rig) -> None:
    rig.store(range(8))
    inside, most, lock = 0, 0, threading.Lock()

    def slow(verb: str, keys: Sequence[PageKey]) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1

    rig.storage.before = slow
    rig.start_fetch(range(4), range(20, 24), id=1)
    rig.start_fetch(range(4, 8), range(24, 28), id=2)
    assert {rig.wait(FetchEnded).id, rig.wait(FetchEnded).id} == {1, 2}
    assert most == 2


def test_an_empty_fetch_ends(rig: Rig) -> None:
    assert rig.fetch([], []) == []


# --- what does not -----------------------------------------------------------------------------------------------


def test_an_exception_fails_the_batch_and_the_next_works(rig: Rig) -> None:
    rig.store(range(8))

    def once(verb: str, keys: Sequence[PageKey]) -> None:
        rig.storage.before = lambda verb, keys: None
        raise OSError("the cable fell out")

    rig.storage.before = once
    rig.start_fetch(range(2), range(20, 22))
    results = rig.wait(FetchEnded).results[0]
    assert results == [Failed("OSError: the cable fell out")] * 2
    assert kinds(rig.fetch(range(8), range(20, 28))) == [Done] * 8
    assert rig.io.stats.failed == {"exception": 2}


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_plugin_that_exits_does_not_take_a_thread_along(rig: Rig, leaving: type[BaseException]) -> None:
    rig.store(range(2))
    calls = 0

    def leave(verb: str, keys: Sequence[PageKey]) -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise leaving()

    rig.storage.before = leave
    for _ in range(3):
        assert kinds(rig.fetch(range(2), range(20, 22))) == [Failed] * 2
    assert kinds(rig.fetch(range(2), range(20, 22))) == [Done] * 2


def test_b074_results_are_per_page_or_the_whole_batch_failed(rig: Rig) -> None:
    """An answer of another length says nothing about any page."""
    rig.store(range(4))
    rig.storage.answer = lambda verb, results: results * 2
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Failed] * 4
    rig.storage.answer = lambda verb, results: results[:-1]
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Failed] * 4
    rig.storage.answer = lambda verb, results: [True] * len(results)  # type: ignore[list-item]
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Failed] * 4
    assert rig.io.stats.failed == {"short": 12}


def test_b074_one_page_of_a_batch_fails_alone(rig: Rig) -> None:
    rig.storage.answer = third_fails
    assert kinds(rig.store(range(4))) == [Done, Done, Done, Done], (
        "the failed page alone was tried again, as first of one"
    )
    rig.storage.answer = lambda verb, results: [
        Failed("V of page 2") if at == 2 or len(results) == 1 else result for at, result in enumerate(results)
    ]
    assert kinds(rig.store(range(10, 14))) == [Done, Done, Failed, Done]


def test_b057_damaged_and_cut_pages_are_misses_and_the_worker_lives(rig: Rig) -> None:
    rig.store(range(4))
    good = rig.storage.inner._pages[rig.key(2)]
    for bad in (bytes(len(good)), good[:1] + bytes(len(good) - 1), good[:-4000] + bytes(4000), b"\xff" + good[1:]):
        rig.storage.inner._pages[rig.key(2)] = bad
        results = rig.fetch(range(4), range(20, 24))
        if bad[: PAYLOAD + 64] != good[: PAYLOAD + 64]:
            assert kinds(results) == [Done, Done, Failed, Done]
    assert rig.io.stats.failed["checksum"] >= 3
    rig.storage.inner._pages[rig.key(2)] = good
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Done] * 4


def test_b085_a_page_of_somebody_else_is_never_taken(rig: Rig) -> None:
    rig.store(range(4))
    pages = rig.storage.inner._pages
    pages[rig.key(0)], pages[rig.key(1)] = pages[rig.key(1)], pages[rig.key(0)]
    results = rig.fetch(range(4), range(20, 24))
    assert kinds(results) == [Failed, Failed, Done, Done]
    assert results[0] == Damaged("it is another page")


def test_b084_a_page_evicted_between_question_and_read_is_a_miss(rig: Rig) -> None:
    rig.store(range(4))
    assert rig.query(range(4)) == [True] * 4
    rig.storage.delete([rig.key(1)])
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Done, Missing, Done, Done]
    assert rig.io.stats.missing == 1
    assert rig.io.stats.failed == {}


def test_b083_what_could_not_be_written_is_reported_and_absent(rig: Rig) -> None:
    bad = {rig.key(3), rig.key(7)}

    def write(keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        return [
            Failed("disk full") if key in bad else rig.storage.inner.write([key], pages[at : at + 1])[0]
            for at, key in enumerate(keys)
        ]

    rig.storage.write = write  # type: ignore[method-assign]
    results = rig.store(range(10))
    assert [isinstance(result, Done) for result in results] == [key not in (3, 7) for key in range(10)]
    assert rig.query(range(10)) == [key not in (3, 7) for key in range(10)]
    assert rig.io.stats.failed["failed"] == 2 * 3, "each was tried three times"
    assert rig.io.stats.retries == 4


def test_retries_end(rig: Rig) -> None:
    rig.storage.answer = lambda verb, results: [Failed("never")] * len(results)
    assert kinds(rig.store(range(3))) == [Failed] * 3
    assert [verb for verb, _ in rig.storage.calls] == ["write"] * 3


def test_b088_a_key_that_was_there_already_is_fine_and_hurts_no_other(rig: Rig) -> None:
    rig.store([3])
    assert kinds(rig.store(range(8))) == [Done] * 8


# --- slow --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty() -> Iterator[tuple[Rig, threading.Event]]:
    """Deadlines of 50 ms, and a backend that hangs until told."""
    rig, free = Rig(timeout_s=0.05, stuck=3, failures=100), threading.Event()
    rig.store(range(8))

    def hang(verb: str, keys: Sequence[PageKey]) -> None:
        free.wait(20)

    rig.storage.before = hang
    yield rig, free
    free.set()
    assert rig.io.close()
    rig.arena.close()


def watch(rig: Rig, until: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < deadline
        rig.io.watch(time.monotonic())
        time.sleep(0.005)


def test_b068_a_late_fetch_keeps_its_pages_until_the_call_returns(hasty: tuple[Rig, threading.Event]) -> None:
    rig, free = hasty
    rig.start_fetch(range(8), range(20, 28))
    watch(rig, lambda: rig.io.late == 2)
    assert rig.wait(FetchMoved).late, "but nobody has to wait for them"
    assert rig.silent(FetchEnded), "the reader may still write to these pages"
    free.set()
    results = rig.wait(FetchEnded).results[0]
    assert kinds(results) == [Done] * len(results)
    assert rig.io.stats.late == 2


def test_a_late_query_is_answered_at_once_and_only_once(hasty: tuple[Rig, threading.Event]) -> None:
    rig, free = hasty
    rig.start_query(range(8))
    watch(rig, lambda: rig.io.late == 1)
    assert rig.wait(Queried, 1) == Queried("r", [[False] * 8])
    free.set()
    assert rig.silent(Queried)


def test_other_calls_go_on_while_some_hang_and_no_new_ones_once_too_many_do(
    hasty: tuple[Rig, threading.Event],
) -> None:
    rig, free = hasty
    for number in range(2):
        rig.start_query([number])
    watch(rig, lambda: rig.io.late == 2)
    rig.storage.before = lambda verb, keys: None
    assert kinds(rig.fetch([1], [20])) == [Done], "stand-ins do the work of threads that hang"
    rig.storage.before = lambda verb, keys: free.wait(20) and None
    rig.start_query([2])
    watch(rig, lambda: rig.io.late == 3)
    calls = len(rig.storage.calls)
    assert kinds(rig.fetch([1, 2], [20, 21])) == [Failed] * 2
    assert rig.io.stats.failed["stuck"] == 2
    assert len(rig.storage.calls) == calls, "the backend was not asked"
    free.set()
    watch(rig, lambda: rig.io.late == 0)
    assert kinds(rig.fetch([1, 2], [20, 21])) == [Done] * 2


def test_threads_do_not_pile_up(hasty: tuple[Rig, threading.Event]) -> None:
    rig, free = hasty
    before = threading.active_count()
    for number in range(30):
        rig.start_query([number])
    watch(rig, lambda: rig.io.late >= 3 and not rig.answers.empty())
    time.sleep(0.1)
    assert threading.active_count() <= before + 6
    free.set()
    watch(rig, lambda: not rig.io.busy and rig.io.late == 0)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before, "stand-ins leave when the late ones are back"


def test_close_is_bounded_and_leaves_a_hanging_backend_alone() -> None:
    rig, free = Rig(), threading.Event()
    rig.store([1])
    rig.storage.before = lambda verb, keys: free.wait(20) and None
    rig.start_fetch([1], [20])
    while rig.storage.calls[-1][0] != "read":
        time.sleep(0.005)
    begin = time.monotonic()
    assert not rig.io.close(0.2)
    assert time.monotonic() - begin < 2
    assert not rig.storage.closed
    free.set()


def test_nothing_is_called_after_close(rig: Rig) -> None:
    rig.store([1])
    assert rig.io.close()
    rig.start_query([1])
    rig.start_fetch([1], [20])
    time.sleep(0.05)
    assert rig.storage.closed and rig.storage.after_close == 0


# --- the breaker -------------------------------------------------------------------------------------------------


def test_storage_that_fails_again_and_again_is_left_alone_and_comes_back_by_itself() -> None:
    rig = Rig(failures=3, pause_s=0.1)
    rig.store(range(4))

    def broken(verb: str, keys: Sequence[PageKey]) -> None:
        raise ConnectionError("down")

    rig.storage.before = broken
    for _ in range(3):
        assert rig.query([1]) == [False]
    calls = len(rig.storage.calls)
    assert rig.query([1]) == [False]
    assert kinds(rig.fetch([1], [20])) == [Failed]
    assert len(rig.storage.calls) == calls, "it rests"
    assert rig.io.values()["storage_read_paused"] == 1
    assert rig.io.stats.failed == {"exception": 3, "pause": 2}
    rig.storage.before = lambda verb, keys: None
    time.sleep(0.12)
    assert rig.query([1]) == [True]
    assert kinds(rig.fetch([1], [20])) == [Done]
    assert rig.io.values()["storage_read_paused"] == 0
    assert rig.io.close()


def test_a_full_disk_does_not_keep_reads_away() -> None:
    rig = Rig(failures=2, pause_s=60, retries=0)
    rig.store(range(4))
    rig.storage.answer = lambda verb, results: [Failed("full")] * len(results) if verb == "write" else results
    for _ in range(4):
        assert kinds(rig.store([10])) == [Failed]
    assert rig.io.values()["storage_write_paused"] == 1
    assert kinds(rig.fetch(range(4), range(20, 24))) == [Done] * 4
    assert rig.io.close()


def test_misses_are_no_failures() -> None:
    rig = Rig(failures=2)
    for _ in range(5):
        assert kinds(rig.fetch([50], [20])) == [Missing]
    assert rig.io.values()["storage_read_paused"] == 0
    assert rig.io.close()


def test_every_page_answers_under_random_faults() -> None:
    """Whatever the backend does: one answer for each operation, and right bytes wherever it says done."""
    rng = np.random.default_rng(7)
    rig = Rig(failures=1000, retry_s=0.0001)
    rig.store(range(16))

    def chaos(verb: str, keys: Sequence[PageKey]) -> None:
        roll = rng.random()
        if roll < 0.1:
            raise RuntimeError("chaos")
        if roll < 0.2:
            time.sleep(0.002)

    def lies(verb: str, results: list[PageResult]) -> Sequence[PageResult]:
        roll = rng.random()
        if roll < 0.05:
            return results[1:]
        if roll < 0.15:
            return [DONE] * len(results)  # also for pages that it never read
        return results

    rig.storage.before, rig.storage.answer = chaos, lies
    for _ in range(150):
        keys = rng.integers(0, 24, rng.integers(1, 12)).tolist()
        ids = rng.permutation(np.arange(30, 60))[: len(keys)].tolist()
        for page in rig.arena.payloads(0, np.array(ids, np.int32)):
            page[:] = bytes([255]) * PAYLOAD
        results = rig.fetch(keys, ids)
        assert len(results) <= len(keys)
        for key, id, result in zip(keys, ids, results, strict=False):
            if isinstance(result, Done):
                assert key < 16 and rig.bytes_of([id]) == [key + 1]
    assert rig.io.close()


@pytest.mark.parametrize("told", [OSError("no cable"), {"calls": "many"}, None, [1]])
def test_a_storage_that_cannot_say_its_numbers_costs_only_those(rig: Rig, told: object) -> None:
    def values() -> object:
        if isinstance(told, Exception):
            raise told
        return told

    rig.storage.values = values  # type: ignore[attr-defined]  # a storage need not count
    stats = rig.io.values()
    assert stats["storage_values_failed"] == 1
    assert stats["storage_late_now"] == 0
