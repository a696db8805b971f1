"""Every window there is: as if the model had full attention only.

It pays where the window pool has pages for everything that the full pool holds, and shows elsewhere what the other
policies save: a pool that is smaller is flooded, and what remains of a path is up to the eviction policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import Context, NoConfig, RetentionPolicy
from stepwell.builtin.retain import Tail


class All(RetentionPolicy):
    """Keeps every page multiple that a request publishes."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        self._tail = Tail()

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        # Those below were kept on the way; asking again would make a path's first windows as recent as its last.
        return self._tail.keep(length, page, branches)

    def along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return range(start + page, end + 1, page)
