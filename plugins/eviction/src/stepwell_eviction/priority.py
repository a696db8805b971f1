"""Priority: pages of less urgent requests leave first; among equals, the least recently used.

It pays where requests of several classes share a machine and the urgent class must find its prefixes whatever the
others do. A segment counts as urgent as the most urgent request that ever used it, and an urgent one that nobody uses
any more stays until everything less urgent is gone: with one class for all it is plain LRU.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell import Context, EvictionPolicy, NoConfig, Segment
from stepwell_eviction.ranked import RankedQueues


class Priority(EvictionPolicy):
    """Evicts by priority, lowest first, then by last use."""

    def __init__(self, config: NoConfig, context: Context | None) -> None:
        self._queues = RankedQueues()

    def on_insert(self, segment: Segment) -> None:
        self._queues.put(segment, segment.priority)

    def on_hit(self, segment: Segment) -> None:
        self._queues.put(segment, segment.priority)

    def on_expose(self, segment: Segment) -> None:
        if segment not in self._queues:
            self._queues.put_first(segment, segment.priority)

    def on_remove(self, segment: Segment) -> None:
        self._queues.drop(segment)

    def victims(self, pages: int) -> Iterator[Segment]:
        return iter(self._queues)
