"""Segmented LRU: a segment is worth protecting once a second request has used it.

Prompts seen once are most of a chat workload. Plain LRU lets each of them push out a shared system prompt; here they
can only push out each other. It pays where few prefixes are shared and many are not, and costs little elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from stepwell import Context, EvictionPolicy, Segment
from stepwell.abc.evict import lazily


@dataclass(frozen=True, slots=True)
class SlruConfig:
    """The `[evict]` table when `use = "slru"`."""

    protected: float = 0.8
    """Greatest share of resident segments that may be protected, 0 to 1."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.protected <= 1.0:
            raise ValueError(f"protected: {self.protected} is not within 0 and 1")


class Slru(EvictionPolicy):
    """Evicts the least recently used of the segments used by one request, then of the others."""

    # OrderedDict, not dict: the first key of a dict is found by walking every hole that evictions left at its front.

    def __init__(self, config: SlruConfig, context: Context | None) -> None:
        self._share = config.protected
        self._once: OrderedDict[Segment, None] = OrderedDict()
        self._again: OrderedDict[Segment, None] = OrderedDict()

    def on_insert(self, segment: Segment) -> None:
        self._place(segment, youngest=True)

    def on_hit(self, segment: Segment) -> None:
        self._place(segment, youngest=True)

    def on_expose(self, segment: Segment) -> None:
        if segment not in self._once and segment not in self._again:
            self._place(segment, youngest=False)

    def on_remove(self, segment: Segment) -> None:
        self._once.pop(segment, None)
        self._again.pop(segment, None)

    def victims(self, pages: int) -> Iterator[Segment]:
        return lazily(self._once, self._again)

    def _place(self, segment: Segment, *, youngest: bool) -> None:
        self.on_remove(segment)
        queue = self._again if segment.hits else self._once
        queue[segment] = None
        queue.move_to_end(segment, last=youngest)
        if len(self._again) > self._share * (len(self._once) + len(self._again)):
            demoted, _ = self._again.popitem(last=False)
            self._once[demoted] = None
