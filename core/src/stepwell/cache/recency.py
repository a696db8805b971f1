"""Candidates in order of their last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from stepwell.abc.evict import EvictionPolicy, Segment, lazily


class Recency(EvictionPolicy):
    """Least recently used first; the parent of an evicted leaf comes next, which makes it leaf-LRU over pages."""

    # OrderedDict, not dict: the first key of a dict is found by walking every hole that evictions left at its front.

    def __init__(self) -> None:
        self._order: OrderedDict[Segment, None] = OrderedDict()
        self._renew = self._order.move_to_end

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_renew"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._renew = self._order.move_to_end  # a copy's own: copying a bound builtin keeps its first owner

    def on_insert(self, segment: Segment) -> None:
        self._order[segment] = None
        self._order.move_to_end(segment)

    def on_hit(self, segment: Segment) -> None:
        try:
            self._renew(segment)
        except KeyError:
            self._order[segment] = None

    def on_remove(self, segment: Segment) -> None:
        self._order.pop(segment, None)

    def on_expose(self, segment: Segment) -> None:
        if segment not in self._order:
            self._order[segment] = None
            self._order.move_to_end(segment, last=False)

    def victims(self, pages: int) -> Iterator[Segment]:
        return lazily(self._order)
