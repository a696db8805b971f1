"""Storage behind threads: queries, fetches and stores in batches, bytes sealed on the way out and checked on return.

A backend costs hits, never answers. Nothing it does (raise, answer short, hang, lie about bytes) reaches the serving
thread other than as pages that are missing. A call that outlives its deadline is given up for those who wait for it,
but keeps its pages until it returns, since it may touch them until then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from stepwell.abc.storage import Storage
from stepwell.cache.cache import FetchOp, FetchPlan, StoreOp
from stepwell.engine.actions import FetchEnded, FetchMoved, Queried, StoreEnded
from stepwell.engine.apart.client import ApartStorage
from stepwell.engine.breaker import State
from stepwell.engine.counting import counted
from stepwell.engine.guard import Guard, IoLimits
from stepwell.engine.lanes import Lanes
from stepwell.engine.page_io import PageIO
from stepwell.errors import StepwellError
from stepwell.types import DONE, Done, Failed, Ids, Missing, PageKey, PageResult, StoredPage

Answer = Queried | FetchMoved | FetchEnded | StoreEnded

STORE_PATIENCE_S = 1.0
"""How much longer a store may wait for a thread than a request that is waiting for its pages."""
QUERY_KEYS = 4096
"""Keys in one question."""


class _Fetch:
    """A fetch under way. Batches start in order, so what was tried is always a leading part."""

    def __init__(self, op: FetchOp, batch: int) -> None:
        self.op = op
        self.batches = [(read, at) for read, (_, keys, _) in enumerate(op.reads) for at in range(0, len(keys), batch)]
        self.parts: dict[int, Sequence[PageResult]] = {}
        self.next = 0
        self.busy = 0
        self.done = 0
        self.stopped = False

    def results(self) -> list[list[PageResult]]:
        """Per read, of what was tried."""
        results: list[list[PageResult]] = [[] for _ in self.op.reads]
        for index in sorted(self.parts):
            results[self.batches[index][0]] += self.parts[index]
        return results


class StorageIO:
    """Carries out queries, fetches and stores on threads of its own; `done` gets the answers, on those threads."""

    def __init__(
        self,
        storage: Storage,
        pages: PageIO,
        slot_bytes: Sequence[int],
        *,
        done: Callable[[Answer], None],
        limits: IoLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`storage` is what `pages` moves pages by; `slot_bytes`: what a page of each group takes in it."""
        self._storage, self._pages, self._bytes, self._done = storage, pages, tuple(slot_bytes), done
        self._limits = limits or IoLimits()
        self._log = logging.getLogger("stepwell.storage")
        self._lanes = Lanes(self._limits.threads, "stepwell.storage", clock)
        self._guard = Guard(self._limits, late=self._lanes.stand_in, back=self._lanes.recovered, clock=clock)
        self._lock = threading.Lock()
        self._fetches: dict[int, _Fetch] = {}
        self._closing = threading.Event()
        self.watch = self._guard.watch
        self.stats = self._guard.stats

    # --- asked by the serving thread ---------------------------------------------------------------------------

    def query(self, rid: str, plan: FetchPlan) -> None:
        """Ask what storage holds of a plan."""
        self._lanes.queue(lambda: self._query(rid, plan))

    def fetch(self, op: FetchOp) -> None:
        """Read pages into host slots."""
        fetch = _Fetch(op, self._limits.batch_pages)
        with self._lock:
            self._fetches[op.id] = fetch
        for _ in range(max(1, min(self._limits.abreast, len(fetch.batches)))):
            self._lanes.queue(lambda: self._go_on(fetch))

    def stop_fetch(self, id: int) -> None:
        """Start no further read of a fetch."""
        with self._lock:
            fetch = self._fetches.get(id)
            if fetch is not None:
                fetch.stopped = True

    def store(self, op: StoreOp) -> None:
        """Write host slots."""
        self._lanes.queue(lambda: self._store(op), STORE_PATIENCE_S)

    @property
    def busy(self) -> bool:
        """Whether anything is queued or under way."""
        return self._lanes.busy

    @property
    def late(self) -> int:
        """Calls beyond their deadline that have not returned."""
        return self._guard.late

    def values(self) -> dict[str, float]:
        """Counters and gauges by name, for metrics."""
        values = self._guard.values() | counted(self._storage)
        return {f"storage_{name}": value for name, value in values.items()}

    def health(self) -> dict[str, object]:
        """Whether calls go through, for people to read."""
        reading, writing = (self._guard.state(reading=reading).value for reading in (True, False))
        return {"reading": reading, "writing": writing, "late_calls": self._guard.late, "busy": self._lanes.busy}

    def clear(self, stopped: Callable[[], bool], hangs: Callable[[], None]) -> int:
        """Delete every page of ours; answers how many. On the caller's thread; StepwellError where storage fails.

        `hangs()` is called, on another thread, when a call outlives its deadline.
        """
        count = 0
        batches: list[Sequence[StoredPage] | None] = []

        def more() -> list[PageResult]:
            batches.append(next(scan, None))
            return [DONE]

        scan = iter(self._storage.scan())
        while not stopped():
            _ask(self._guard.call(more, 1, reading=True, give_up=hangs), count)
            found = batches.pop()
            if found is None:
                break
            for at in range(0, len(found), QUERY_KEYS):
                keys = [page.key for page in found[at : at + QUERY_KEYS]]
                _ask(self._guard.call(partial(self._delete, keys), len(keys), reading=False, give_up=hangs), count)
                count += len(keys)
        return count

    def _delete(self, keys: Sequence[PageKey]) -> list[PageResult]:
        self._storage.delete(keys)
        return [DONE] * len(keys)

    def let_go(self, drain_s: float) -> None:
        """Finish what was asked within `drain_s`, refuse the rest, wait for calls that hang, close the backend.

        Every operation is answered, once, when nothing touches its pages any more; this returns after the last.
        """
        self._lanes.settle(drain_s)
        self._closing.set()
        self._guard.abandon()
        self._lanes.settle(None)
        while self._guard.close():  # a clear that hangs is on a thread of its own
            time.sleep(0.05)
        self.close()

    def close(self, wait_s: float = 5.0) -> bool:
        """Start nothing more, wait for what is under way, close the backend.

        False where a call did not return in time: the backend is then left alone, and so must be the arena.
        """
        self._closing.set()
        self._guard.close()
        self._lanes.close(wait_s)
        left = self._guard.close()
        if left and isinstance(self._storage, ApartStorage):
            self._storage.end()
            self._lanes.close(wait_s)
            left = self._guard.close()
        if left:
            self._log.warning("storage is left open: %d calls have not returned", left)
            return False
        try:
            self._storage.close()
        except Exception as error:
            self._log.warning("storage failed to close: %s: %s", type(error).__name__, error)
        return True

    # --- on the lanes: queries ---------------------------------------------------------------------------------

    def _query(self, rid: str, plan: FetchPlan) -> None:
        first = threading.Lock()  # taken by who answers first: this job, or the watch that gave its call up

        def answer(present: Sequence[Sequence[bool]]) -> None:
            if first.acquire(blocking=False):
                self._done(Queried(rid, present))

        def nothing() -> None:
            answer([[False] * len(keys) for keys in plan.keys])

        flat = [key for keys in plan.keys for key in keys]
        held: list[bool] = []
        for at in range(0, len(flat), QUERY_KEYS):
            results = self._contains(flat[at : at + QUERY_KEYS], nothing)
            if first.locked() or any(isinstance(result, Failed) for result in results):
                return nothing()
            held += [isinstance(result, Done) for result in results]
        parts = iter(held)
        answer([[next(parts) for _ in keys] for keys in plan.keys])

    def _contains(self, keys: Sequence[PageKey], give_up: Callable[[], None]) -> list[PageResult]:
        self._guard.add(queries=1)
        return self._guard.call(lambda: self._pages.contains(keys), len(keys), reading=True, give_up=give_up)

    # --- on the lanes: fetches ---------------------------------------------------------------------------------

    def _go_on(self, fetch: _Fetch) -> None:
        """Read the next batch of a fetch and queue the one after it; at the end, say that it ended."""
        id = fetch.op.id
        with self._lock:
            over = fetch.stopped or fetch.next == len(fetch.batches)
            ended = over and fetch.busy == 0 and self._fetches.pop(id, None) is not None
            index = fetch.next
            if not over:
                fetch.next += 1
                fetch.busy += 1
        if over:
            return self._done(FetchEnded(id, fetch.results())) if ended else None
        read, at = fetch.batches[index]
        group, keys, ids = fetch.op.reads[read]
        part = slice(at, at + self._limits.batch_pages)
        results = self._read(group, keys[part], ids[part], lambda: self._late(fetch))
        with self._lock:
            fetch.busy -= 1
            fetch.parts[index] = results
            fetch.done += sum(isinstance(result, Done) for result in results)
            fetch.stopped |= all(isinstance(result, Failed) for result in results)
            moved = FetchMoved(id, fetch.done)
        self._done(moved)
        self._lanes.queue(lambda: self._go_on(fetch))

    def _late(self, fetch: _Fetch) -> None:
        """A read does not return: start no further one, and let nobody wait for it."""
        with self._lock:
            fetch.stopped = True
            moved = FetchMoved(fetch.op.id, fetch.done, late=True)
        self._done(moved)

    def _read(self, group: int, keys: Sequence[PageKey], ids: Ids, give_up: Callable[[], None]) -> list[PageResult]:
        results = self._guard.call(lambda: self._pages.read(group, keys, ids), len(keys), reading=True, give_up=give_up)
        good = sum(isinstance(result, Done) for result in results)
        missing = sum(isinstance(result, Missing) for result in results)
        self._guard.add(reads=1, pages_read=good, bytes_read=good * self._bytes[group], missing=missing)
        return results

    # --- on the lanes: stores ----------------------------------------------------------------------------------

    def _store(self, op: StoreOp) -> None:
        results: list[PageResult] = []
        for at in range(0, len(op.keys), self._limits.batch_pages):
            part = slice(at, at + self._limits.batch_pages)
            results += self._write(op.group, op.keys[part], op.host[part])
        self._done(StoreEnded(op.id, results))

    def _write(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        """Write a batch, and what of it failed again within bounds."""
        results = self._write_once(group, keys, ids)
        for attempt in range(self._limits.retries):
            failed = [at for at, result in enumerate(results) if not isinstance(result, Done)]
            if not failed or self._guard.state(reading=False) is not State.CLOSED:
                break
            if self._closing.wait(self._limits.retry_s * 2**attempt):
                break
            self._guard.add(retries=len(failed))
            again = self._write_once(group, [keys[at] for at in failed], ids[np.array(failed)])
            for at, result in zip(failed, again, strict=True):
                results[at] = result
        good = sum(isinstance(result, Done) for result in results)
        self._guard.add(pages_written=good, bytes_written=good * self._bytes[group])
        return results

    def _write_once(self, group: int, keys: Sequence[PageKey], ids: Ids) -> list[PageResult]:
        self._guard.add(writes=1)
        results = self._guard.call(lambda: self._pages.write(group, keys, ids), len(keys), reading=False)
        return [Failed("storage says missing of a write") if isinstance(one, Missing) else one for one in results]


def _ask(results: Sequence[PageResult], count: int) -> None:
    if results and isinstance(results[0], Failed):
        raise StepwellError(f"storage failed after {count} pages were cleared: {results[0].reason}")
