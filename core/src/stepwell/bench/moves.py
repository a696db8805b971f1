"""Pages of an arena on their way to a storage and back, and to and from the client library that it is built on.

Both are given the same views in the same batches by the same number of threads, and both are checked to have filled
every page that they say they read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np

from stepwell.cache.arena import Arena
from stepwell.cli.storage_open import Store
from stepwell.errors import PluginError, StepwellError
from stepwell.offers import Native
from stepwell.types import DIGEST_BYTES, TAG_BYTES, Done, Missing, PageKey, PageResult, PageViews

QUERY_KEYS = 4096
"""Keys in one question, as the engine asks."""
MARK_BYTES = 8
ROOM = "that the round had put; it needs room for 2 x --mib: give it more or lower --mib"
"""What a store lacks that drops pages before they are read."""
Move = Callable[[Sequence[PageKey], PageViews], None]


class Batches:
    """All pages of an arena, `per_call` in a call, `callers` calls at once."""

    def __init__(self, arena: Arena, per_call: int, callers: int) -> None:
        _, self.page_bytes, _ = arena.slots(0)
        self.pages = arena.nbytes // self.page_bytes
        self.per_call, self.callers = per_call, callers
        self.keys: list[PageKey] = []
        """Of the pages that were put last."""
        starts = range(0, self.pages, per_call)
        self._parts = [slice(at, min(at + per_call, self.pages)) for at in starts]
        self._views = [arena.views(0, np.arange(part.start, part.stop, dtype=np.int32)) for part in self._parts]
        self._marks = np.frombuffer(arena.memory, dtype=np.uint8).reshape(self.pages, self.page_bytes)[:, :MARK_BYTES]

    def put(self, move: Move) -> float:
        """Move every page under a new key; MB/s."""
        self.keys = [os.urandom(DIGEST_BYTES + TAG_BYTES) for _ in range(self.pages)]
        return self._time(move)

    def get(self, move: Move) -> float:
        """Move every page back; MB/s. StepwellError where a page was not filled."""
        marks = self._marks.copy()
        self._marks[:] = 0
        rate = self._time(move)
        if not np.array_equal(marks, self._marks):
            raise StepwellError("the backend answered done for pages that it did not fill")
        return rate

    def _time(self, move: Move) -> float:
        def work(nth: int) -> None:
            move(self.keys[self._parts[nth]], self._views[nth])

        with ThreadPoolExecutor(self.callers) as pool:
            start = time.perf_counter()
            for _ in pool.map(work, range(len(self._parts))):
                pass
            spent = time.perf_counter() - start
        return self.pages * self.page_bytes / spent / 1e6


class Subject:
    """The storage that is measured."""

    def __init__(self, store: Store, batches: Batches, drop: Callable[[], None] = lambda: None) -> None:
        """`drop` makes reads go to the disk, where there is one."""
        self._store, self._batches, self._drop = store, batches, drop

    def put(self) -> float:
        """Store every page under a new key."""
        return self._batches.put(self._write)

    def get(self) -> float:
        """Read every page back."""
        self._drop()
        return self._batches.get(self._read)

    def contains(self) -> float:
        """Ask for every page; keys a second."""
        keys = self._batches.keys
        start = time.perf_counter()
        for at in range(0, len(keys), QUERY_KEYS):
            self._store.contains(keys[at : at + QUERY_KEYS])
        return len(keys) / (time.perf_counter() - start)

    def clear(self) -> None:
        """Forget all pages."""
        self._store.delete(self._batches.keys)
        self._batches.keys = []

    def _write(self, keys: Sequence[PageKey], pages: PageViews) -> None:
        all_done("write", self._store.write(keys, pages))

    def _read(self, keys: Sequence[PageKey], into: PageViews) -> None:
        all_done("read", self._store.read(keys, into))


@runtime_checkable
class Deletes(Protocol):
    """A client that can forget pages without being closed."""

    def delete(self, keys: Sequence[PageKey]) -> None:
        """Forget pages that were put."""


class Bare:
    """The client library alone, as a baseline.

    One client serves all rounds, as one storage does, since memory and files are slower when they are first used. What
    it puts goes after each round if it has `delete`, or names pages as the storage does; else in the end.
    """

    name = "native"

    def __init__(
        self, make: Callable[[], Native], batches: Batches, store: Store, drop: Callable[[], None] = lambda: None
    ) -> None:
        self.terms = f"the client library alone, {batches.per_call} pages a call, {batches.callers} calls at once"
        self._make, self._batches, self._store, self._drop = make, batches, store, drop
        self._native: Native | None = None

    def put(self) -> float:
        if self._native is None:
            with _blamed():
                self._native = self._make()
        return self._batches.put(_blamed_move(self._native.put))

    def get(self) -> float:
        assert self._native is not None, "there is nothing to read before a put"
        self._drop()
        return self._batches.get(_blamed_move(self._native.get))

    def clear(self) -> None:
        if not isinstance(self._native, Deletes):
            return self._store.delete(self._batches.keys)
        with _blamed():
            self._native.delete(self._batches.keys)

    def close(self) -> None:
        """Release the client; its pages go with it."""
        native, self._native = self._native, None
        if native is not None:
            with _blamed():
                native.close()


def _blamed_move(move: Move) -> Move:
    def moved(keys: Sequence[PageKey], views: PageViews) -> None:
        with _blamed():
            move(keys, views)

    return moved


@contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except StepwellError:
        raise
    except Exception as error:
        raise PluginError(f"the client library alone: {type(error).__name__}: {error}") from error


def all_done(verb: str, results: Sequence[PageResult]) -> None:
    """StepwellError where a page did not."""
    bad = [result for result in results if not isinstance(result, Done)]
    missing = sum(isinstance(result, Missing) for result in bad)
    if missing and verb == "read":
        raise StepwellError(f"the store dropped {missing} of {len(results)} pages {ROOM}")
    if bad:
        raise StepwellError(f"{len(bad)} of {len(results)} pages did not {verb}, the first for {bad[0]}")
