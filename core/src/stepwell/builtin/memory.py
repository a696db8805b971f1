"""Storage in this process's own memory: for trying the third tier out, and for tests of everything above it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from stepwell.abc.storage import Storage
from stepwell.offers import Context
from stepwell.types import DONE, MISSING, Failed, PageKey, PageResult, PageViews, StoredPage


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The `[storage]` table when `use = "memory"`."""

    gib: float = 1.0
    """Most memory that pages may take; the least recently used go first."""

    def __post_init__(self) -> None:
        if not 0 < self.gib * 2**30 < inf:
            raise ValueError(f"gib: {self.gib} is not a size above 0")


class MemoryStorage(Storage):
    """Copies of pages in a dict, least recently used first."""

    def __init__(self, config: MemoryConfig, context: Context) -> None:
        self._limit = int(config.gib * 2**30)
        self._lock = threading.Lock()
        self._pages: OrderedDict[PageKey, bytes] = OrderedDict()
        self._size = 0

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        with self._lock:
            return [key in self._pages for key in keys]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        return [self._read(key, view) for key, view in zip(keys, into.buffers(), strict=True)]

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        return [self._write(key, bytes(view)) for key, view in zip(keys, pages.buffers(), strict=True)]

    def delete(self, keys: Sequence[PageKey]) -> None:
        with self._lock:
            for key in keys:
                self._size -= len(self._pages.pop(key, b""))

    def scan(self) -> Iterator[list[StoredPage]]:
        with self._lock:
            pages = list(self._pages.items())
        yield [StoredPage(key, len(page)) for key, page in pages]

    def close(self) -> None:
        with self._lock:
            self._pages.clear()
            self._size = 0

    def _read(self, key: PageKey, view: memoryview) -> PageResult:
        with self._lock:
            page = self._pages.get(key)
            if page is None:
                return MISSING
            self._pages.move_to_end(key)
        if len(page) != len(view):
            return Failed(f"the page has {len(page)} bytes, not {len(view)}")
        view[:] = page
        return DONE

    def _write(self, key: PageKey, page: bytes) -> PageResult:
        with self._lock:
            if len(page) > self._limit:
                return Failed(f"a page of {len(page)} bytes is larger than all of storage")
            if key in self._pages:
                self._pages.move_to_end(key)
                return DONE
            self._pages[key] = page
            self._size += len(page)
            while self._size > self._limit:
                _, oldest = self._pages.popitem(last=False)
                self._size -= len(oldest)
        return DONE
