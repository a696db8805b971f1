"""Pages for requests: those that a match found, those to load, and new ones for what is to be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepwell.abc.write import Cause
from stepwell.cache.groups import pages_of
from stepwell.cache.index import Index
from stepwell.cache.ledger import Lease
from stepwell.cache.match import Found, whole
from stepwell.cache.node import DEVICE, HOST
from stepwell.cache.pool import NO_IDS
from stepwell.cache.tiering import Tiering
from stepwell.types import Cached, Ids


class Admitter:
    """Makes leases and lets them grow; whoever asks for one keeps it, and gives it back."""

    def __init__(self, index: Index, tiering: Tiering) -> None:
        self._index = index
        self._geometry = index.geometry
        self._pools = index.pools
        self._tiering = tiering
        self._evictor = tiering.evictor

    def admit(
        self,
        namespace: bytes,
        found: Found,
        upto: Callable[[int], int],
        reserve: int | Sequence[int],
        priority: int,
        fetched: range,
    ) -> Lease | None:
        """As `Cache.admit`, for what a match found."""
        page = self._geometry.page
        pages = max(found.length, pages_of(upto(found.length * page), page))
        pools = self._pools[DEVICE]
        hits = [ids[ids >= 0] for ids in found.device]
        loads = [NO_IDS if ids is None else ids[ids >= 0] for ids in found.host]
        for group, pool in enumerate(pools):
            pool.acquire(hits[group])
            self._pools[HOST][group].acquire(loads[group])
        new = [pages - found.length + len(ids) for ids in loads]
        if not self._room(new, [reserve] * len(new) if isinstance(reserve, int) else reserve):
            for group, pool in enumerate(pools):
                pool.release(hits[group], used=False)
                self._pools[HOST][group].release(loads[group], used=False)
            return None
        lease = self._lease(namespace, found, pages, priority, fetched)
        for group, pool in enumerate(pools):
            self._fill(lease, found, group, pool.allocate(new[group]))
            self._pools[HOST][group].release(loads[group], used=False)
        self._count(lease, found)
        return lease

    def would_admit(
        self, found: Found, upto: Callable[[int], int], reserve: Sequence[int], without: Sequence[Lease]
    ) -> bool:
        """As `Cache.would_admit`, for what a match found."""
        page = self._geometry.page
        pages = max(found.length, pages_of(upto(found.length * page), page))
        for group, pool in enumerate(self._pools[DEVICE]):
            device, host = found.device[group], found.host[group]
            hits = device[device >= 0]
            loads = 0 if host is None else int(np.count_nonzero(host >= 0))
            tables = [lease.tables[group][lease.trimmed[group] : lease.pages] for lease in without]
            need = pages - found.length + loads + reserve[group]
            if pool.would_have(hits, np.concatenate([NO_IDS, *tables])) < need:
                return False
        return True

    def extend(self, lease: Lease, upto: int) -> bool:
        """As `Cache.extend`."""
        pages = pages_of(upto, self._geometry.page)
        new = pages - lease.pages
        if new <= 0:
            return True
        if not self._room([new] * len(lease.tables), [0] * len(lease.tables)):
            return False
        for group, pool in enumerate(self._pools[DEVICE]):
            ids = pool.allocate(new)
            table = lease.tables[group]
            if pages > len(table):
                grown = np.full(max(pages, 2 * len(table)), -1, dtype=np.int32)
                grown[: len(table)] = table
                table = lease.tables[group] = grown
            table[lease.pages : pages] = ids
            lease.edits.append((group, lease.pages, ids))
        lease.pages = pages
        lease.capacity = pages * self._geometry.page
        return True

    def _room(self, new: Sequence[int], reserve: Sequence[int]) -> bool:
        """Make room for `new` pages a group where it can be had, all or none."""
        pools = self._pools[DEVICE]
        if any(
            pool.free < count + spare and pool.available() < count + spare
            for pool, count, spare in zip(pools, new, reserve, strict=True)
        ):
            return False
        return all([self._evictor.room(DEVICE, group, count) for group, count in enumerate(new)])

    def _lease(self, namespace: bytes, found: Found, pages: int, priority: int, fetched: range) -> Lease:
        page = self._geometry.page
        device = min([found.length, *(self._loads_from(found, g) for g in range(len(found.first)))]) * page
        storage = max(0, min(fetched.stop, found.length * page) - max(fetched.start, device))
        rows = max(16, 1 << max(0, pages - 1).bit_length())
        return Lease(
            namespace=namespace,
            tables=[np.full(rows, -1, dtype=np.int32) for _ in self._geometry.groups],
            capacity=pages * page,
            cached=Cached(device, found.length * page - device - storage, storage),
            pages=pages,
            published=found.length,
            trimmed=list(found.first),
            priority=priority,
        )

    def _loads_from(self, found: Found, group: int) -> int:
        """The first page that is loaded; 0 where the device has none of the group. It keeps none before a window."""
        host = found.host[group]
        if host is None:
            return found.length
        if not self._geometry.full and host[0] >= 0:
            return 0
        return found.first[group] + int(np.flatnonzero(host >= 0)[0])

    def _fill(self, lease: Lease, found: Found, group: int, new: Ids) -> None:
        """Write a group's table, and plan its loads into the first of the new pages."""
        first, length = found.first[group], found.length
        table = lease.tables[group]
        table[first:length] = found.device[group]
        host = found.host[group]
        if host is not None:
            places = np.flatnonzero(host >= 0)
            into, new = new[: len(places)].copy(), new[len(places) :]
            table[first + places] = into
            lease.loads.append(self._tiering.load(lease, group, found.node, first + places, into, host[places]))
        table[length : length + len(new)] = new
        if lease.pages > first:
            lease.edits.append((group, first, table[first : lease.pages].copy()))

    def _count(self, lease: Lease, found: Found) -> None:
        """The request uses every node that it matched whole."""
        last = whole(found.node, found.length)
        self._index.candidates.use(last, found.first)
        root = self._index.roots.get(lease.namespace, last)
        if last.parent is None and last is not root:
            return  # the length that was found needs no page, and making room took its node
        used = self._index.path(last, root)
        now = self._index.candidates.now
        for node in used:
            node.hits += 1
            node.last_used = now
            node.expires = None
            if node.priority < lease.priority:
                node.priority = lease.priority
        lease.counted = last.first + last.pages
        if lease.counted == found.length and used:
            lease.place = last
        self._tiering.consider(used, Cause.HIT)
