"""What is moved, whichever way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from stepwell import ArenaView, PageViews
from stepwell_threefs.segment import Segment


class Place(NamedTuple):
    """Where a page of a batch lies, or shall lie."""

    segment: Segment
    offset: int
    at: int
    """Its index in the batch."""


class Mover(Protocol):
    """Moves pages between memory and segments."""

    def attach(self, arena: ArenaView) -> None:
        """Get to know the memory that pages come from."""

    def move(
        self, places: Sequence[Place], pages: PageViews, moved: Callable[[int], None], *, write: bool
    ) -> dict[int, str]:
        """Move pages; why those that failed did, by their index in the batch. Returns when nothing is under way.

        Each of the others is told to `moved` by its index, on any thread, while others are still under way.
        """

    def close(self) -> None:
        """Release everything."""
