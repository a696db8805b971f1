"""Events for routers and logs: which pages became readable in a tier, and which left it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.abc.sink import Event, PagesRemoved, PagesStored, TierCleared
from stepwell.cache.chain import digest_before
from stepwell.cache.chain import digests as digests_of
from stepwell.cache.index import Index
from stepwell.cache.keys import page_keys
from stepwell.cache.node import DEVICE, TIERS, Node
from stepwell.types import DIGEST_BYTES, PageKey, Tier


class Watch:
    """Collects events until they are drained."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._events: list[Event] = []

    def record(self, added: bool, tier: int, group: int, node: Node, pages: Sequence[int]) -> None:
        """Pages of a node, numbered within it, came to a tier or left it."""
        spec = self._index.geometry.groups[group].spec
        digests = digests_of(node, self._index.geometry.page)
        where = Tier.DEVICE if tier == DEVICE else Tier.HOST
        picked = b"".join([digests[DIGEST_BYTES * page : DIGEST_BYTES * (page + 1)] for page in pages])
        keys = page_keys(picked, spec)
        if added:
            parent = digest_before(node, pages[0], self._index.geometry.page) + spec.tag
            first = node.first + pages[0] == 0
            self._events.append(
                PagesStored(where, spec.name, keys, None if first else parent, self._index.geometry.page)
            )
        else:
            self._events.append(PagesRemoved(where, spec.name, keys))

    def stored(self, group: int, before: PageKey | None, keys: tuple[PageKey, ...]) -> None:
        """Pages were written to storage."""
        spec = self._index.geometry.groups[group].spec
        self._events.append(PagesStored(Tier.STORAGE, spec.name, keys, before, self._index.geometry.page))

    def storage_cleared(self) -> None:
        """Storage went, or forgot all."""
        self._events.append(TierCleared(Tier.STORAGE))

    def present(self) -> list[Event]:
        """All that there is, in runs of a node each, nodes above first."""
        found: list[Event] = [TierCleared(Tier.DEVICE), TierCleared(Tier.HOST)]
        events, self._events = self._events, found
        waiting = [child for root in self._index.roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            for group, run in enumerate(node.runs):
                for tier in TIERS:
                    pages = [] if run is None else np.flatnonzero(run.ids(tier, node.pages) >= 0).tolist()
                    if pages:
                        self.record(True, tier, group, node, pages)
        self._events = events
        return found

    def drain(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events
