"""Simulated storage: what it holds, and when a transfer over its link would end."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.types import TAG_BYTES, PageKey


@dataclass(slots=True)
class Link:
    """One direction of a link: transfers queue up, each takes its latency and its bytes over the bandwidth."""

    bytes_per_s: float
    latency_s: float
    free_at: float = 0.0

    def send(self, now: float, nbytes: int) -> float:
        """When a transfer that is asked for now has arrived."""
        begin = max(now, self.free_at)
        self.free_at = begin + nbytes / self.bytes_per_s
        return self.free_at + self.latency_s


class SimStore:
    """Keys by recency up to a size; the least recently used leave first."""

    def __init__(self, capacity_bytes: int) -> None:
        self._keys: OrderedDict[PageKey, int] = OrderedDict()
        self._capacity = capacity_bytes
        self.used = 0

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        """Which of the keys are held; counts as a use of those."""
        return [self._touch(key) for key in keys]

    def _touch(self, key: PageKey) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, keys: Sequence[PageKey], page_bytes: int) -> None:
        """Hold these pages; a page that is there already is only used."""
        for key in keys:
            if self._touch(key):
                continue
            self._keys[key] = page_bytes
            self.used += page_bytes
        while self.used > self._capacity:
            self.used -= self._keys.popitem(last=False)[1]

    def pages(self) -> Counter[bytes]:
        """Pages held, by their group's tag."""
        return Counter(key[-TAG_BYTES:] for key in self._keys)
