"""A storage that goes wrong on purpose, for the tests of whatever stands in front of a storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell import DONE, MISSING, ArenaView, Done, Failed, PageKey, PageResult, PageViews, Storage


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
    write_error: int = 0
    """Every n-th page written answers Failed, and is not stored."""
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
        self._pages_read = 0
        self._pages_written = 0

    def attach(self, arena: ArenaView) -> None:
        self.inner.attach(arena)

    def contains(self, keys: Sequence[PageKey]) -> Sequence[bool]:
        self._enter("contains")
        return self.inner.contains(keys)

    def read(self, keys: Sequence[PageKey], into: PageViews) -> Sequence[PageResult]:
        self._enter("read")
        results = self.inner.read(keys, into)
        with self._lock:
            first = self._pages_read + 1
            self._pages_read += len(keys)
        return [
            self._spoil(first + i, result, into[i : i + 1]) if isinstance(result, Done) else result
            for i, result in enumerate(results)
        ]

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> Sequence[PageResult]:
        self._enter("write")
        with self._lock:
            first = self._pages_written + 1
            self._pages_written += len(keys)
        every = self.faults.write_error
        good = [i for i in range(len(keys)) if not _hits(every, first + i)]
        if len(good) == len(keys):
            return self.inner.write(keys, pages)
        results: list[PageResult] = [Failed("injected write error")] * len(keys)
        for i in good:
            results[i] = self.inner.write(keys[i : i + 1], pages[i : i + 1])[0]
        return results

    def delete(self, keys: Sequence[PageKey]) -> None:
        self._enter("delete")
        self.inner.delete(keys)

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

    def _spoil(self, nth: int, result: PageResult, into: PageViews) -> PageResult:
        faults = self.faults
        page = into.buffers()[0]
        if _hits(faults.read_error, nth):
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
