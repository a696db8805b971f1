"""LFU with aging: the segment used by the fewest requests leaves first, and old fame fades.

It pays where popularity is stable: shared system prompts, few-shot preambles, popular documents. Recency alone lets a
burst of prompts that are seen once push those out; counts do not. Counts alone never forgive: what was popular
yesterday would sit there for ever. So a segment enters at the level at which the last one left, and climbs one level a
use: what is no longer used is overtaken after as many turnovers of the rest as it had uses, at most `ceiling`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell import Context, EvictionPolicy, Segment
from stepwell_eviction.ranked import RankedQueues


@dataclass(frozen=True, slots=True)
class LfuConfig:
    """The `[evict]` table when `use = "lfu"`."""

    ceiling: int = 16
    """Uses beyond this count no more; more remembers longer."""

    def __post_init__(self) -> None:
        if self.ceiling < 1:
            raise ValueError(f"ceiling: {self.ceiling} is less than 1")


class Lfu(EvictionPolicy):
    """Evicts the least frequently used; among equals, the least recently used."""

    def __init__(self, config: LfuConfig, context: Context | None) -> None:
        self._ceiling = config.ceiling
        self._level = 0
        """Where the last segment left."""
        self._queues = RankedQueues()

    def on_insert(self, segment: Segment) -> None:
        self._queues.put(segment, self._rank(segment))

    def on_hit(self, segment: Segment) -> None:
        self._queues.put(segment, self._rank(segment))

    def on_expose(self, segment: Segment) -> None:
        if segment not in self._queues:
            self._queues.put_first(segment, self._rank(segment))

    def on_remove(self, segment: Segment) -> None:
        lowest = self._queues.lowest
        # Only what leaves from below is an eviction; what gained a child has just been used, and stands above.
        if self._queues.drop(segment) == lowest is not None:
            self._level = max(self._level, lowest)

    def victims(self, pages: int) -> Iterator[Segment]:
        return iter(self._queues)

    def _rank(self, segment: Segment) -> int:
        return self._level + 1 + min(segment.hits, self._ceiling)
