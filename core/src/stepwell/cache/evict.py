"""Making room: pages leave a tier in the order that its policy proposes.

Of a full group only the last pages of a node without children go, so no hole strands what lies behind it. Of a window
group first go pages that no retained length needs, among them what is left of a window that lost a page. Pages that the
write policy would still copy down go last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np

from stepwell.abc.evict import EvictionPolicy
from stepwell.cache.index import Index
from stepwell.cache.ledger import CacheStats
from stepwell.cache.node import DEVICE, HOST, TIERS, Node, Places, Run, Seg
from stepwell.cache.pool import Flags, Pool
from stepwell.types import Ids

AT_ONCE = 64
"""Pages that are evicted together, at most a 128th of the pool more than asked for."""
PASSED = 32
"""Unsaved segments that clean ones behind may go before: where copies down cannot keep up, a search ends, too."""


class Evictor:
    """Frees pages of both tiers."""

    def __init__(
        self,
        index: Index,
        stats: CacheStats,
        unsaved: Callable[[int, Node, int, Places], Flags],
        copying: Callable[[int, int], Ids],
    ) -> None:
        """`unsaved(tier, node, group, places)`: which pages of a node the write policy wants a tier down, yet absent.

        `copying(tier, group)`: the ids that copies hold, once for each copy.
        """
        self._index = index
        self._stats = stats
        self._unsaved = unsaved
        self._copying = copying
        self._tiers = any(pool.total for pool in index.pools[HOST])
        self._parked: list[list[dict[Seg, None]]] = [[{} for _ in index.geometry.groups] for _ in TIERS]
        """Candidates that were met while held; announced again when they are not."""
        self._barren = [[-1] * len(tier) for tier in self._parked]
        """What a pool's `loosened` was when all was searched in vain: as long as it is, there is no use in another."""

    def room(self, tier: int, group: int, pages: int) -> bool:
        """See to it that `pages` pages are free."""
        pool = self._index.pools[tier][group]
        short = pages - pool.free
        if short <= 0:
            return True
        self.evict(tier, group, max(short, min(AT_ONCE, pool.total // 128)))
        return pool.free >= pages

    def evict(self, tier: int, group: int, pages: int) -> int:
        """Free up to `pages` pages; answers how many."""
        pool = self._index.pools[tier][group]
        if self._barren[tier][group] == pool.loosened:
            return 0
        self._unpark(tier, group)
        freed = 0
        if self._index.geometry.groups[group].full:
            for dirty in (False, True):
                freed += self._full(tier, group, pages - freed, dirty)
            while freed < pages and self._detach(tier, group):
                freed += self._full(tier, group, pages - freed, True)
        else:
            freed = self._windows(tier, group, pages, self._index.candidates.dead[tier][group], dead=True, dirty=True)
            for dirty in (False, True):
                policy = self._index.candidates.policies[tier][group]
                freed += self._windows(tier, group, pages - freed, policy, dead=False, dirty=dirty)
        if tier == HOST:
            self._stats.evicted_host += freed
        else:
            self._stats.evicted_device += freed
        if freed < pages:
            self._barren[tier][group] = pool.loosened
        return freed

    def _unpark(self, tier: int, group: int) -> None:
        parked = self._parked[tier][group]
        pool = self._index.pools[tier][group]
        for segment in list(parked):
            node = segment.node
            run = node.runs[group]
            if node.parent is None or run is None or not segment.pages:
                del parked[segment]
                continue
            if self._index.geometry.groups[group].full:
                loose = pool.loose(self._tail(tier, node, group, 1)[1]) > 0
            else:
                loose = bool(pool.loose_mask(run.ids(tier, node.pages)).any())
            if loose:
                del parked[segment]
                self._index.candidates.relist(segment)

    # region: full groups

    def _full(self, tier: int, group: int, pages: int, dirty: bool) -> int:
        index = self._index
        policy = index.candidates.policies[tier][group]
        pool = index.pools[tier][group]
        freed, ask, passed = 0, pages, 0
        quick = tier == DEVICE and index.watch is None
        calm = not pool.busy.any()
        while freed < pages and passed < PASSED:
            offered, moved = 0, False
            for segment in cast("Iterable[Seg]", policy.victims(ask)):
                offered += segment.pages
                node = segment.node
                run = node.runs[group]
                assert run is not None
                if run.below[tier]:
                    index.candidates.pass_over(segment)
                    moved = True
                    continue
                if quick and segment.pages <= pages - freed and self._whole(pool, run, calm):
                    went = self._leaf(node, group, run, dirty)
                    if went is None:
                        passed += 1
                        if passed == PASSED:
                            break
                        continue
                    freed += went
                    if went:
                        moved = True
                        if freed >= pages or index.candidates.exposed:
                            break
                        continue
                places, ids = self._tail(tier, node, group, pages - freed)
                loose = pool.loose(ids)
                unsaved = self._tiers and loose > 0 and bool(self._unsaved(tier, node, group, places[-1:]).any())
                if unsaved and not dirty:
                    passed += 1
                    if passed == PASSED:
                        break
                    continue
                if loose < len(ids):
                    self._parked[tier][group][segment] = None
                    index.candidates.pass_over(segment)
                    moved = True
                if not loose:
                    continue
                places = places[-loose:]
                if unsaved and tier == DEVICE:
                    self._stats.dropped_dirty += loose
                freed += index.cut(tier, node, group, places)
                index.close_gap(node)
                moved = True
                if freed >= pages or index.candidates.exposed:
                    break
            index.settle()
            if not moved:
                if offered < ask:
                    break
                ask = 2 * offered
        return freed

    @staticmethod
    def _whole(pool: Pool, run: Run, calm: bool) -> bool:
        """Whether all pages of a run can go from device. `calm`: no save is in flight.

        Leases hold pages from the root on, so unless copies hold some, the first page answers for all.
        """
        device = run.device
        if not pool.idle(device[:4]):
            return False
        return calm or pool.loose(np.frombuffer(device, dtype=np.int32)) == len(device) // 4

    def _leaf(self, node: Node, group: int, run: Run, dirty: bool) -> int | None:
        """Let all device pages of a node without children on device go; answers how many, None: not before all others.

        0: not here, for there is more to it.
        """
        pages = run.segments[DEVICE].pages
        if run.segments[HOST].pages == node.pages:
            self._index.lift(node, group)
            return pages
        if node.children or (self._tiers and any(each is not None and each.host for each in node.runs)):
            return 0
        if self._tiers and self._unsaved(DEVICE, node, group, np.array([node.pages - 1])).any():
            if not dirty:
                return None
            self._stats.dropped_dirty += pages
        self._index.bury(node)
        return pages

    def _tail(self, tier: int, node: Node, group: int, pages: int) -> tuple[Places, Ids]:
        """The last pages of a node that are in a tier, at most `pages`."""
        run = node.run(group)
        if tier == DEVICE:
            count = len(run.device) // 4
            start = max(0, count - pages)
            return np.arange(start, count), np.frombuffer(run.device, np.int32, offset=4 * start)
        ids = np.frombuffer(run.host, dtype=np.int32)
        if run.segments[HOST].pages == len(ids):
            start = max(0, len(ids) - pages)
            return np.arange(start, len(ids)), ids[start:]
        there = np.flatnonzero(ids >= 0)[-pages:]
        return there, ids[there]

    def _detach(self, tier: int, group: int) -> bool:
        """Let the tree go of a page that a copy alone still holds, so that those above it can go."""
        index = self._index
        pool = index.pools[tier][group]
        copies = np.bincount(self._copying(tier, group), minlength=pool.total)
        for segment in list(self._parked[tier][group]):
            node = segment.node
            if node.parent is None or not segment.pages or node.run(group).below[tier]:
                continue
            places, ids = self._tail(tier, node, group, 1)
            if pool.refs[ids[0]] - copies[ids[0]] == 1 and copies[ids[0]]:
                index.cut(tier, node, group, places)
                index.close_gap(node)
                index.settle()
                self._unpark(tier, group)
                return True
        return False

    # endregion

    # region: windows

    def _windows(self, tier: int, group: int, pages: int, policy: EvictionPolicy, *, dead: bool, dirty: bool) -> int:
        index = self._index
        freed, ask, passed = 0, pages, 0
        while freed < pages and passed < PASSED:
            offered, moved = 0, False
            for segment in cast("Iterable[Seg]", policy.victims(ask)):
                offered += segment.pages
                got, gone = self._window(tier, group, segment, pages - freed, policy, dead=dead, dirty=dirty)
                freed += got
                if gone:
                    freed += self._fallen(tier, group, pages - freed)
                    moved = True
                else:
                    passed += 1
                if freed >= pages or passed == PASSED:
                    break
            index.settle()
            if not moved:
                if offered < ask:
                    break
                ask = 2 * offered
        return freed

    def _fallen(self, tier: int, group: int, pages: int) -> int:
        """Free what a window that lost a page leaves behind, before the policy is asked for another."""
        fallen, freed = self._index.candidates.fallen, 0
        policy = self._index.candidates.dead[tier][group]
        while fallen and freed < pages:
            segment = fallen.pop()
            if segment.tier == tier and segment.group == group and segment.node.runs[group] is not None:
                freed += self._window(tier, group, segment, pages - freed, policy, dead=True, dirty=True)[0]
        return freed

    def _window(
        self, tier: int, group: int, segment: Seg, pages: int, policy: EvictionPolicy, *, dead: bool, dirty: bool
    ) -> tuple[int, bool]:
        """Pages freed of one segment, and whether it is any less of a candidate."""
        index = self._index
        node = segment.node
        run = node.runs[group]
        if run is None:
            # It went with another's window; the policy hears of it when it was read to here.
            return 0, True
        ids = run.ids(tier, node.pages)
        wanted = ids >= 0
        if run.kept:
            kept = np.frombuffer(run.kept, dtype=np.bool_)
            wanted &= ~kept if dead else kept
        elif not dead:
            wanted[:] = False
        loose = np.flatnonzero(wanted & index.pools[tier][group].loose_mask(ids))
        if not len(loose):
            if wanted.any():
                self._parked[tier][group][segment] = None
            index.candidates.tell(policy.on_remove, segment)
            return 0, True
        if self._tiers and not dead:
            unsaved = self._unsaved(tier, node, group, loose)
            if not dirty:
                loose = loose[~unsaved]
            elif tier == DEVICE:
                self._stats.dropped_dirty += int(np.count_nonzero(unsaved[-pages:]))
        loose = loose[-pages:]
        if not len(loose):
            return 0, False
        freed = index.cut(tier, node, group, loose)
        if not index.geometry.full:
            index.close_gap(node)
        return freed, True

    # endregion
