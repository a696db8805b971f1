"""Segments in queues, a queue a rank: what policies that order by a small number are made of."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from stepwell import Segment


class RankedQueues:
    """Lowest rank first, oldest first within a rank. Every step costs the same however many segments there are."""

    # OrderedDict, not dict: the first key of a dict is found by walking every hole that evictions left at its front.

    def __init__(self) -> None:
        self._queues: dict[int, OrderedDict[Segment, None]] = {}
        self._ranks: list[int] = []
        """Those of queues that are not empty, ascending."""
        self._rank: dict[Segment, int] = {}

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._rank

    def __iter__(self) -> Iterator[Segment]:
        return chain.from_iterable(self._queues[rank] for rank in self._ranks)

    @property
    def lowest(self) -> int | None:
        """The least rank of any segment."""
        return self._ranks[0] if self._ranks else None

    def put(self, segment: Segment, rank: int) -> None:
        """Make the segment the youngest of a rank, wherever it was."""
        if self._rank.get(segment) == rank:
            self._queues[rank].move_to_end(segment)
            return
        self.drop(segment)
        if rank not in self._queues:
            self._queues[rank] = OrderedDict()
            insort(self._ranks, rank)
        self._queues[rank][segment] = None
        self._rank[segment] = rank

    def put_first(self, segment: Segment, rank: int) -> None:
        """Make the segment the oldest of a rank, wherever it was."""
        self.put(segment, rank)
        self._queues[rank].move_to_end(segment, last=False)

    def drop(self, segment: Segment) -> int | None:
        """Take the segment out; answers the rank it had."""
        rank = self._rank.pop(segment, None)
        if rank is None:
            return None
        queue = self._queues[rank]
        del queue[segment]
        if not queue:
            del self._queues[rank]
            del self._ranks[bisect_left(self._ranks, rank)]
        return rank
