"""S3-FIFO: a small queue in which newcomers prove themselves, a main queue for those that did, a memory of who left.

It pays where most segments are used once: they pass through the small queue and are gone before they cost the main one
anything. A hit moves nothing within the main queue, it only earns another round. The memory (ghosts) pays where pages
come back: a segment that left device for host and is loaded again goes to the main queue at once.

A proposal may change nothing, so what the original does while it looks for a victim happens here when one is removed.
Segments are counted, not pages, since pages come and go without word.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

from stepwell import Context, EvictionPolicy, Segment

MOST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class S3FifoConfig:
    """The `[evict]` table when `use = "s3fifo"`."""

    small: float = 0.1
    """Share of resident segments that the small queue keeps, 0 to 1, before the main queue gives up any."""
    promote: int = 1
    """Requests, besides the one that made it, that must use a segment for it to go to the main queue."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.small <= 1.0:
            raise ValueError(f"small: {self.small} is not within 0 and 1")
        if self.promote < 1:
            raise ValueError(f"promote: {self.promote} is less than 1")


class S3Fifo(EvictionPolicy):
    """Evicts from the small queue while it holds more than its share, else from the main queue, in rounds."""

    def __init__(self, config: S3FifoConfig, context: Context | None) -> None:
        self._share = config.small
        self._promote = config.promote
        self._small: OrderedDict[Segment, None] = OrderedDict()
        self._main: OrderedDict[Segment, int] = OrderedDict()
        """With the rounds that each has earned."""
        self._ghosts: OrderedDict[ref[Segment], None] = OrderedDict()
        """Who left the small queue lately, at most as many as are resident. Weak: a segment holds its node."""

    def on_insert(self, segment: Segment) -> None:
        if segment in self._small or segment in self._main:
            return
        if self._ghosts.pop(ref(segment), self) is None:
            self._main[segment] = 0
        else:
            self._enter(segment)

    def on_hit(self, segment: Segment) -> None:
        if segment in self._main:
            self._main[segment] = min(self._main[segment] + 1, MOST_ROUNDS)
        elif segment not in self._small:
            self._enter(segment)
        elif segment.hits >= self._promote:
            del self._small[segment]
            self._enter(segment)

    def on_expose(self, segment: Segment) -> None:
        if segment not in self._small and segment not in self._main:
            self._enter(segment).move_to_end(segment, last=False)

    def on_remove(self, segment: Segment) -> None:
        if self._small.pop(segment, self) is None:
            self._ghosts[ref(segment)] = None
        elif segment in self._main:
            if self._main[segment] == 0:
                self._pass_over(segment)
            del self._main[segment]
        while len(self._ghosts) > len(self._small) + len(self._main):
            self._ghosts.popitem(last=False)

    def victims(self, pages: int) -> Iterator[Segment]:
        small, main = iter(self._small), self._rounds()
        few, many = len(self._small), len(self._main)
        while few or many:
            if few and (not many or few > self._share * (few + many)):
                few -= 1
                yield next(small)
            else:
                many -= 1
                yield next(main)

    def _rounds(self) -> Iterator[Segment]:
        """The main queue as it would be emptied: a round that was earned is a round later."""
        for earned in range(MOST_ROUNDS + 1):
            for segment, rounds in self._main.items():
                if rounds == earned:
                    yield segment

    def _enter(self, segment: Segment) -> OrderedDict[Segment, None] | OrderedDict[Segment, int]:
        """Make it the youngest of the queue that its uses entitle it to; answers that queue."""
        if segment.hits >= self._promote:
            self._main[segment] = 0
            return self._main
        self._small[segment] = None
        return self._small

    def _pass_over(self, victim: Segment) -> None:
        """Those in front of a victim have had their round: each was paid for by a hit."""
        for segment in iter(lambda: next(iter(self._main)), victim):
            rounds = self._main[segment]
            if rounds == 0:
                return
            self._main[segment] = rounds - 1
            self._main.move_to_end(segment)
