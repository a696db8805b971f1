"""A storage that goes wrong on purpose, for the tests of whatever stands in front of a storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepwell import DONE, MISSING, ArenaView, Done, Failed, PageKey, PageResult, PageViews, Storage, StoredPage

SHORT = "short write"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Counts are over all calls since the start: 3 is every third page, or call; 0 is never."""

    read_error: int = 0
    """Every n-th page read answers Failed."""
    short_read: int = 0
    """Every n-th page read is filled by half and answers Failed."""
    corrupt: int = 0
    """Every n-th page read comes back with one bit flipped, and answers DONE."""
    lost: int = 0
    """Every n-th page read answers MISSING."""
    read_error_at: int = 0
    """Exactly the n-th page read answers Failed."""
    write_error: int = 0
    """Every n-th page written answers Failed, and is not stored."""
    write_error_at: int = 0
    """Exactly the n-th page written answers Failed, and is not stored."""
    short_write: int = 0
    """Every n-th page written is stored by half and answers Failed; nobody finds it until it is written again."""
    refuses_duplicates: bool = False
    """A page that is there already, or comes a second time in its batch, answers Failed."""
    evicts_between: int = 0
    """Every n-th page that `contains` finds is dropped then: true, and MISSING when it is read."""
    room: int | None = None
    """Bytes that may be written in all; pages beyond answer Failed, and are not stored."""
    down: range = range(0)
    """Calls that raise ConnectionError, by their number from 1 on: a server that is away for a while."""
    raises: int = 0
    """Every n-th call raises OSError before it does anything."""
    slow_s: float = 0.0
    """Every call takes this long more."""
    gate: threading.Event | None = None
    """Every call waits here until the event is set: a call that hangs for as long as a test likes."""


class FaultyStorage(Storage):
    """Passes calls on to `inner`, with faults. `faults` may be replaced at any time; `calls` counts by method."""

    def __init__(self, inner: Storage, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.calls = {"contains": 0, "read": 0, "write": 0, "delete": 0}
        self._lock = threading.Lock()
        self._found = self._pages_read = self._pages_written = self._bytes_written = 0
        self._hidden: set[PageKey] = set()
        """What the inner storage holds by half."""

    def attach(self, arena: ArenaView) -> None:
        self.inner.attach(arena)

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        self._enter("contains")
        claims = [found and key not in self._hidden for key, found in zip(keys, self.inner.contains(keys), strict=True)]
        for key in [key for key, found in zip(keys, claims, strict=True) if found]:
            with self._lock:
                self._found += 1
                dropped = _hits(self.faults.evicts_between, self._found)
            if dropped:
                self.inner.delete([key])
        return claims

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        self._enter("read")
        results = self.inner.read(keys, into)
        with self._lock:
            first = self._pages_read + 1
            self._pages_read += len(keys)
        return [
            MISSING
            if keys[i] in self._hidden
            else self._spoil(first + i, result, into[i : i + 1])
            if isinstance(result, Done)
            else result
            for i, result in enumerate(results)
        ]

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        self._enter("write")
        whys = self._refusals(keys, int(pages.sizes.sum()))
        good = [i for i, why in enumerate(whys) if not why]
        for i in good:
            if keys[i] in self._hidden:
                self.inner.delete([keys[i]])
                self._hidden.discard(keys[i])
        if len(good) == len(keys):
            return self.inner.write(keys, pages)
        results: list[PageResult] = [Failed(f"injected: {why}") for why in whys]
        for i in good:
            results[i] = self.inner.write(keys[i : i + 1], pages[i : i + 1])[0]
        for i in [i for i, why in enumerate(whys) if why == SHORT]:
            self._store_half(keys[i], pages[i : i + 1])
        return results

    def delete(self, keys: Sequence[PageKey]) -> None:
        self._enter("delete")
        self.inner.delete(keys)
        self._hidden.difference_update(keys)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        for batch in self.inner.scan():
            yield [page for page in batch if page.key not in self._hidden]

    def close(self) -> None:
        self.inner.close()

    def _enter(self, method: str) -> None:
        faults = self.faults
        with self._lock:
            self.calls[method] += 1
            nth = sum(self.calls.values())
        if faults.gate is not None:
            faults.gate.wait()
        if faults.slow_s:
            time.sleep(faults.slow_s)
        if _hits(faults.raises, nth):
            raise OSError(f"injected into call {nth}, {method}")
        if nth in faults.down:
            raise ConnectionError(f"injected into call {nth}, {method}: the server is away")

    def _refusals(self, keys: Sequence[PageKey], nbytes: int) -> list[str]:
        """Why each page may not be written; empty where it may."""
        faults = self.faults
        there = self.inner.contains(keys) if faults.refuses_duplicates else [False] * len(keys)
        whys = []
        for i, key in enumerate(keys):
            with self._lock:
                self._pages_written += 1
                nth = self._pages_written
                full = faults.room is not None and self._bytes_written + nbytes > faults.room
                if faults.refuses_duplicates and (there[i] or key in keys[:i]):
                    whys.append("the key is there")
                elif full:
                    whys.append("no space left")
                elif _hits(faults.short_write, nth):
                    whys.append(SHORT)
                elif _hits(faults.write_error, nth) or nth == faults.write_error_at:
                    whys.append("write error")
                else:
                    self._bytes_written += nbytes
                    whys.append("")
        return whys

    def _store_half(self, key: PageKey, page: PageViews) -> None:
        if self.inner.contains([key])[0]:
            return  # the whole page, from an earlier write
        half = PageViews.of(page.buffers()[0], int(page.addresses[0, 0]), [0], int(page.sizes[0]) // 2)
        self.inner.write([key], half)
        self._hidden.add(key)

    def _spoil(self, nth: int, result: PageResult, into: PageViews) -> PageResult:
        faults = self.faults
        page = into.buffers()[0]
        if _hits(faults.read_error, nth) or nth == faults.read_error_at:
            return Failed("injected read error")
        if _hits(faults.short_read, nth):
            half = len(page) // 2
            page[half:] = bytes(len(page) - half)
            return Failed("injected short read")
        if _hits(faults.lost, nth):
            return MISSING
        if _hits(faults.corrupt, nth):
            page[len(page) // 2] ^= 1
            return DONE
        return result


def _hits(every: int, nth: int) -> bool:
    return every > 0 and nth % every == 0
