"""Reads all pages of a storage and checks them: threads, each with a region of memory of its own, batches of one size.

Nothing is kept of pages that are good, however many there are.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.filesize import decimal

from stepwell.cache.arena import BLOCK, Arena
from stepwell.cli.storage_open import Store
from stepwell.engine import seal
from stepwell.errors import PluginError, StepwellError
from stepwell.types import Failed, Missing, PageKey, PageResult, PageViews, StoredPage

BATCH = 64
"""Most pages in one read: as many as the engine asks for at once."""
PATIENCE_S = 10.0
"""How long reads may do nothing but fail before the storage counts as gone."""
GRACE_S = 10.0
"""How long calls under way may take to return once all is to stop."""
TURN_S = 0.1


@dataclass(frozen=True, slots=True)
class Bad:
    """A page that is not as it was stored, or that could not be read."""

    key: PageKey
    nbytes: int
    why: str


@dataclass(slots=True)
class Sums:
    """What was found so far."""

    pages: int = 0
    nbytes: int = 0
    good: int = 0
    vanished: int = 0
    """Pages that were listed, and gone when they were read."""
    deleted: int = 0
    damaged: list[Bad] = field(default_factory=list)
    unreadable: list[Bad] = field(default_factory=list)
    """Pages whose read failed: it may be the storage's fault, and pass."""


class Verifier:
    """Reads and checks pages on threads, from the moment it is made."""

    def __init__(self, store: Store, arena: Arena, threads: int, delete: bool) -> None:
        self.sums = Sums()
        self._store, self._arena, self._delete = store, arena, delete
        _, self._region, _ = arena.slots(0)
        self._lock = threading.Lock()
        self._queue: queue.Queue[Sequence[StoredPage] | None] = queue.Queue(2 * threads)
        self._error: Exception | None = None
        self._last_s = time.monotonic()
        # Daemons, since a call that never returns must not keep the process.
        self._threads = [threading.Thread(target=self._work, args=(nth,), daemon=True) for nth in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self) -> Iterator[None]:
        """Check everything. Yields often, so that somebody can say how far it is; raises what went wrong."""
        waiting: dict[int, list[StoredPage]] = defaultdict(list)
        for pages in self._store.pages():
            for page in pages:
                waiting[page.nbytes].append(page)
                if len(waiting[page.nbytes]) >= self._most(page.nbytes):
                    yield from self._hand(waiting.pop(page.nbytes))
            yield
        for batch in waiting.values():
            yield from self._hand(batch)
        for _ in self._threads:
            yield from self._hand(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(TURN_S)
                yield
        self._judge()

    def stop(self) -> None:
        """Start nothing more, and wait for what is under way. The store is stuck where that does not return."""
        self._error = self._error or StepwellError("it was stopped")
        self._store.stuck = True
        until = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._store.stuck = any(thread.is_alive() for thread in self._threads)

    def _most(self, nbytes: int) -> int:
        """Pages of one size in a batch."""
        return max(1, min(BATCH, self._region // _stride(nbytes)))

    def _hand(self, batch: Sequence[StoredPage] | None) -> Iterator[None]:
        """Put a batch where a thread takes it; None ends one."""
        while True:
            self._judge()
            try:
                return self._queue.put(batch, timeout=TURN_S)
            except queue.Full:
                yield

    def _judge(self) -> None:
        if self._error is not None:
            raise self._error

    # --- on the threads ------------------------------------------------------------------------------------------

    def _work(self, nth: int) -> None:
        while self._error is None:
            try:
                batch = self._queue.get(timeout=TURN_S)
                if batch is None:
                    return
                self._check(nth, batch)
            except queue.Empty:
                continue
            except Exception as error:
                self._error = self._error or error

    def _check(self, nth: int, batch: Sequence[StoredPage]) -> None:
        size = batch[0].nbytes
        if size > self._region:
            why = f"larger than the {decimal(self._region)} that --memory-mib leaves a thread"
            return self._add(batch, [Failed(why)] * len(batch), [None] * len(batch))
        first, stride = nth * self._region, _stride(size)
        starts = [first + at * stride for at in range(len(batch))]
        views = PageViews.of(self._arena.memory, self._arena.address, starts, size)
        results = self._store.read([page.key for page in batch], views)
        wrong = [seal.inspect(slot, page.key) for page, slot in zip(batch, views.buffers(), strict=True)]
        self._add(batch, results, wrong)

    def _add(self, batch: Sequence[StoredPage], results: Sequence[PageResult], wrong: Sequence[str | None]) -> None:
        """Count a batch; `wrong` means something where the page was read."""
        sums = Sums(len(batch), sum(page.nbytes for page in batch))
        for page, result, why in zip(batch, results, wrong, strict=True):
            if isinstance(result, Missing):
                sums.vanished += 1
            elif isinstance(result, Failed):
                sums.unreadable.append(Bad(page.key, page.nbytes, result.reason))
            elif why is not None:
                sums.damaged.append(Bad(page.key, page.nbytes, why))
            else:
                sums.good += 1
        if self._delete and sums.damaged:
            self._store.delete([page.key for page in sums.damaged])
            sums.deleted = len(sums.damaged)
        with self._lock:
            _join(self.sums, sums)
        self._patience(sums)

    def _patience(self, sums: Sums) -> None:
        """A storage that is gone would otherwise fail page by page to the end."""
        now = time.monotonic()
        if len(sums.unreadable) < sums.pages:
            self._last_s = now
        elif now - self._last_s > PATIENCE_S:
            raise PluginError(
                f"{self._store.name}: nothing could be read for {PATIENCE_S:g} s ({sums.unreadable[-1].why})"
            )


def _stride(nbytes: int) -> int:
    """From one page to the next in memory, so that direct I/O can have them."""
    return max(1, -(-nbytes // BLOCK)) * BLOCK


def _join(into: Sums, more: Sums) -> None:
    into.pages += more.pages
    into.nbytes += more.nbytes
    into.good += more.good
    into.vanished += more.vanished
    into.deleted += more.deleted
    into.damaged += more.damaged
    into.unreadable += more.unreadable
