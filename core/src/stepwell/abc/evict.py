"""Which cached pages leave a tier first."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain


class Segment:
    """A run of pages of one tree node, of one group in one tier; the unit that eviction policies see.

    Policies read it and may use it as a dictionary key (identity). Core alone changes it.
    """

    __slots__ = ("__weakref__", "hits", "last_used", "pages", "priority", "started")

    def __init__(self, pages: int = 0, started: int = 0, priority: int = 0) -> None:
        self.pages = pages
        """Pages it holds now; shrinks when its tail is evicted, grows when a leaf is extended."""
        self.hits = 0
        """Requests that used it since it was inserted, the one that inserted it not counted."""
        self.last_used = started
        """Logical time of its last use; larger is later."""
        self.started = started
        """Logical time of its insertion."""
        self.priority = priority
        """Largest priority of a request that used it."""


class EvictionPolicy(ABC):
    """Orders the candidates for eviction of one group in one tier.

    Pure: no clock, no I/O, no thread; equal calls give equal answers. Core calls it from the serving thread and
    itself skips proposals that a request holds or that have children left.
    """

    @abstractmethod
    def on_insert(self, segment: Segment) -> None:
        """A new segment became a candidate."""

    @abstractmethod
    def on_hit(self, segment: Segment) -> None:
        """A request used the segment. It may have been removed before: then it is a candidate again."""

    @abstractmethod
    def on_remove(self, segment: Segment) -> None:
        """The segment is no candidate any more: evicted, or it gained a child. A second call is no error."""

    @abstractmethod
    def victims(self, pages: int) -> Iterable[Segment]:
        """Propose segments to evict from, best first, until they hold at least `pages` pages.

        May be lazy: core stops reading when it has enough, and reads on, past `pages`, over those it cannot take.
        A proposal changes nothing: only `on_remove` does. Fewer pages come back only when there are no more candidates.
        """

    def on_expose(self, segment: Segment) -> None:
        """The last child of the segment went; it is a candidate again, older than all others unless still listed."""
        self.on_insert(segment)

    def on_split(self, upper: Segment, lower: Segment) -> None:  # noqa: B027 - most policies need nothing
        """`lower`, which may be known, kept its tail; `upper` is new, holds its head, and is no candidate yet."""


def take_pages(segments: Iterable[Segment], pages: int) -> list[Segment]:
    """The leading segments that hold at least `pages` pages together, or all of them."""
    taken: list[Segment] = []
    for segment in segments:
        if pages <= 0:
            break
        taken.append(segment)
        pages -= segment.pages
    return taken


def lazily(*queues: Iterable[Segment]) -> Iterator[Segment]:
    """One queue after the other, read only as far as asked."""
    return chain(*queues)
