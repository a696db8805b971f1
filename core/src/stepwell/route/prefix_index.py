"""What replicas have cached, as their KV events tell: how much of a prompt each could continue from.

The same rule as a cache's own match, on digests instead of tokens: the longest prefix of whole pages for which every
group has the pages it needs, on device or host. A group with a window counts only where all pages of that window are
there, so an answer never promises more than the events said; it promises less while events are on their way, and where
the bound on pages is reached, since pages beyond that are not noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from stepwell.abc.sink import Event, PagesRemoved, PagesStored, TierCleared
from stepwell.types import DIGEST_BYTES, Full, Need, Tier

MOST_PAGES = 2_000_000
"""Pages noted over all replicas; each takes about 170 bytes."""
TIERS: Mapping[Tier, int] = {Tier.DEVICE: 1, Tier.HOST: 2}
"""Bits of a page, two for each group."""

Held = dict[bytes, int]
"""By digest: in which tiers which groups have the page."""


class PrefixIndex:
    """Applies replicas' events and answers for a prompt's page digests. One thread."""

    def __init__(self, page_size: int, needs: Mapping[str, Need], *, limit: int = MOST_PAGES) -> None:
        """`needs`: of every attention group by name, as `Hello.groups` has it. `limit`: pages noted over all."""
        self.page_size, self._limit = page_size, limit
        self._needs = tuple(needs.values())
        self._shift = {name: 2 * at for at, name in enumerate(needs)}
        self._full = [3 << 2 * at for at, need in enumerate(self._needs) if isinstance(need, Full)]
        self._held: dict[str, Held] = {}
        self._next: dict[str, int] = {}
        self._pages = 0
        self._lows: tuple[npt.NDArray[np.int64], ...] = tuple(np.zeros(1, np.int64) for _ in self._needs)
        self.unnoted = 0
        """Pages that were not noted because of the bound."""
        self.gaps = 0
        """Times that events of a replica were lost on the way, and what was known of it forgotten."""

    def __len__(self) -> int:
        return self._pages

    def forget(self, replica: str) -> None:
        """Nothing is known of a replica any more: it is gone, or starts anew."""
        self._pages -= len(self._held.pop(replica, ()))
        self._next.pop(replica, None)

    def apply(self, replica: str, events: Sequence[Event], number: int | None = None) -> bool:
        """Take a replica's next events. `number` counts its batches by one; 0 begins anew.

        False: some before these were lost. What was known of the replica is forgotten then, so that no page counts that
        may be gone, and these events are applied; whoever can should ask the replica for all it has.
        """
        whole = True
        if number is not None:
            expected = self._next.get(replica, 0)
            whole = number in (0, expected)
            if number != expected:
                self.forget(replica)
            self.gaps += not whole
            self._next[replica] = number + 1
        held = self._held.setdefault(replica, {})
        for event in events:
            self._apply(held, event)
        return whole

    def cached(self, pages: Sequence[bytes], replicas: Sequence[str]) -> list[int]:
        """Tokens that each replica could continue from, given the digests of a prompt's pages."""
        return [self.page_size * self._usable(self._held.get(name, {}), pages) for name in replicas]

    # --- events ------------------------------------------------------------------------------------------------

    def _apply(self, held: Held, event: Event) -> None:
        bit = TIERS.get(event.tier)
        if bit is None:
            return
        if isinstance(event, TierCleared):
            self._strike(held, list(held), sum(bit << shift for shift in self._shift.values()))
            return
        shift = self._shift.get(event.group)
        if shift is None:
            return
        keys = [key[:DIGEST_BYTES] for key in event.keys]
        if isinstance(event, PagesStored):
            self._note(held, keys, bit << shift)
        elif isinstance(event, PagesRemoved):
            self._strike(held, keys, bit << shift)

    def _note(self, held: Held, keys: Sequence[bytes], bit: int) -> None:
        """In path order, so where the bound cuts off a run it is the end that is missing."""
        for key in keys:
            known = held.get(key)
            if known is None:
                if self._pages >= self._limit:
                    self.unnoted += 1
                    continue
                self._pages += 1
                known = 0
            held[key] = known | bit

    def _strike(self, held: Held, keys: Sequence[bytes], bits: int) -> None:
        for key in keys:
            known = held.get(key)
            if known is None:
                continue
            if left := known & ~bits:
                held[key] = left
            else:
                del held[key]
                self._pages -= 1

    # --- answers -----------------------------------------------------------------------------------------------

    def _usable(self, held: Held, pages: Sequence[bytes]) -> int:
        """Whole pages from which a replica could continue."""
        if not held:
            return 0
        if len(self._needs) == 1 and self._full:
            return sum(1 for _ in takewhile(held.__contains__, pages))
        there = [held.get(page, 0) for page in pages]
        if self._full:
            there = list(takewhile(lambda bits: all(bits & mask for mask in self._full), there))
        return self._continued(np.array(there, dtype=np.int64))

    def _continued(self, there: npt.NDArray[np.int64]) -> int:
        """The longest length of which each group has the pages that it needs, given the bits of each page."""
        lengths = np.arange(1, len(there) + 1)
        good = np.ones(len(there), dtype=bool)
        for at, low in enumerate(self._first_needed(len(there))):
            absent = (there >> 2 * at & 3) == 0
            after_hole = np.maximum.accumulate(np.where(absent, lengths, 0))
            good &= after_hole <= low[1 : len(there) + 1]
        usable = np.flatnonzero(good)
        return int(usable[-1]) + 1 if len(usable) else 0

    def _first_needed(self, pages: int) -> tuple[npt.NDArray[np.int64], ...]:
        """For each group, by length in pages: the first page that continuing there needs."""
        if len(self._lows[0]) <= pages:
            lengths = range(2 * pages + 1)
            page = self.page_size
            self._lows = tuple(np.array([need.lo(n * page) // page for n in lengths]) for need in self._needs)
        return self._lows
