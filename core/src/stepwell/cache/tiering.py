"""Copies between device and host: saves as the write policy asks for them, loads as requests need them.

An operation in flight remembers nodes. A split leaves the tail in the node it had, so what became of a page is found by
climbing from there; that it is the same page is checked by its id, which cannot be reused while the copy holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np

from stepwell.abc.runner import PageCopy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.evict import Evictor
from stepwell.cache.index import Index, Places
from stepwell.cache.keys import page_keys
from stepwell.cache.ledger import CacheStats, Lease, StoreOp
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node, Seg
from stepwell.cache.pool import NO_IDS
from stepwell.types import Done, Ids, PageKey, PageResult

NOWHERE: Places = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive pages of a node on the move; page numbers count from the root."""

    node: Node
    first: int
    upper: Ids
    lower: Ids


def place(node: Node, page: int) -> Node | None:
    """The node that now has a page which was in `node`; None where it left the tree."""
    here: Node | None = node
    while here is not None and here.parent is not None:
        if page >= here.first:
            return here if page < here.first + here.pages else None
        here = here.parent
    return None


class Tiering:
    """Saves and loads, queued and in flight."""

    def __init__(self, index: Index, stats: CacheStats, write: WritePolicy, storage: bool) -> None:
        self._index = index
        self._stats = stats
        self._write = write
        self._storage = storage
        self._has_host = any(pool.total for pool in index.pools[HOST])
        self._ids = count(1)
        self._wanted: deque[Node] = deque()
        self._stores: deque[Node] = deque()
        self._saving: dict[int, tuple[int, list[Piece]]] = {}
        self._loading: dict[int, tuple[Lease, int, Node, Ids, PageCopy]] = {}
        self._storing: dict[int, tuple[int, list[Piece]]] = {}
        self.evictor = Evictor(index, stats, self.unsaved, self.copying)

    # region: what the write policy wants

    def unsaved(self, tier: int, node: Node, group: int, page: int) -> bool:
        """Whether the policy wants a page of a node a tier down that is not there yet."""
        run = node.runs[group]
        uses = node.hits + 1
        if run is None:
            return False
        if tier == HOST:
            held = int(run.ids(HOST, node.pages)[page])
            if not self._storage or self._index.pools[HOST][group].stored[held]:
                return False
            return self._write.decide(Edge.STORE, Cause.EVICT, uses) is Decision.NOW
        if not self._index.pools[HOST][group].total:
            return False
        if run.host and run.host[4 * page : 4 * page + 4] != ABSENT:
            return False
        return node.wanted or self._write.decide(Edge.SAVE, Cause.EVICT, uses) is Decision.NOW

    def consider(self, nodes: Iterable[Node], cause: Cause) -> None:
        """Ask the write policy about nodes that were inserted or used."""
        if not self._has_host:
            return
        for node in nodes:
            if self._lacks(node):
                self._queue_save(node, cause)
            if cause is Cause.HIT and self._storage and self._unstored(node):
                self._queue_store(node, cause)

    def _queue_save(self, node: Node, cause: Cause) -> None:
        if not node.wanted and self._write.decide(Edge.SAVE, cause, node.hits + 1) is Decision.NOW:
            node.wanted = True
            self._wanted.append(node)

    def _lacks(self, node: Node) -> bool:
        return any(len(self._savable(node, group)) for group in range(len(node.runs)))

    def _savable(self, node: Node, group: int) -> Places:
        """Pages of a node that could be saved now: on device, not on host, not on their way."""
        run = node.runs[group]
        if run is None or not run.device or not self._index.pools[HOST][group].total:
            return NOWHERE
        ids = run.ids(DEVICE, node.pages)
        able = (ids >= 0) & ~self._index.pools[DEVICE][group].busy[ids]
        if run.host:
            able &= np.frombuffer(run.host, dtype=np.int32) < 0
        if not self._index.geometry.groups[group].full:
            if not run.kept:
                return NOWHERE
            able &= np.frombuffer(run.kept, dtype=np.bool_)
        return np.flatnonzero(able)

    def _unstored(self, node: Node) -> bool:
        return any(len(self._storable(node, group)) for group in range(len(node.runs)))

    def _storable(self, node: Node, group: int) -> Places:
        run = node.runs[group]
        if run is None or not run.host:
            return NOWHERE
        ids = np.frombuffer(run.host, dtype=np.int32)
        pool = self._index.pools[HOST][group]
        return np.flatnonzero((ids >= 0) & ~pool.stored[ids] & ~pool.busy[ids])

    # endregion

    # region: saves

    def saves(self, limit: int) -> list[PageCopy]:
        self._ahead(DEVICE)
        moves: list[list[Piece]] = [[] for _ in self._index.geometry.groups]
        while self._wanted and limit > 0:
            node = self._wanted[0]
            if node.parent is not None:
                limit -= self._save(node, limit, moves)
                if limit <= 0 and self._lacks(node):
                    break
            node.wanted = False
            self._wanted.popleft()
        copies = []
        for group, pieces in enumerate(moves):
            if pieces:
                copy = PageCopy(
                    next(self._ids),
                    group,
                    np.concatenate([piece.upper for piece in pieces]),
                    np.concatenate([piece.lower for piece in pieces]),
                )
                self._saving[copy.id] = (group, pieces)
                copies.append(copy)
        return copies

    def _save(self, node: Node, limit: int, moves: list[list[Piece]]) -> int:
        """Allocate host pages for a node and for what it continues: what is saved implies all above it."""
        index = self._index
        chain = [node]
        while (above := chain[-1].parent) is not None and above.parent is not None and self._lacks(above):
            chain.append(above)
        taken = 0
        for part in reversed(chain):
            for group in range(len(part.runs)):
                places = self._savable(part, group)[: limit - taken]
                if not len(places):
                    continue
                host = self._host_pages(part, group, len(places))
                self._stats.skipped_saves += len(places) - len(host)
                places = places[: len(host)]
                if not len(host):
                    if index.geometry.groups[group].full:
                        return taken
                    continue
                device = part.run(group).ids(DEVICE, part.pages)[places]
                index.pools[DEVICE][group].acquire(device)
                index.pools[DEVICE][group].busy[device] = True
                for low, high in runs_of(places):
                    moves[group].append(Piece(part, part.first + int(places[low]), device[low:high], host[low:high]))
                taken += len(places)
        return taken

    def _host_pages(self, node: Node, group: int, pages: int) -> Ids:
        """Up to `pages` free host pages, none of them taken from the path that leads to the node."""
        pool = self._index.pools[HOST][group]
        above: Node | None = node
        keep = NO_IDS
        while above is not None and not len(keep):
            run = above.runs[group]
            if run is not None and run.host:
                ids = np.frombuffer(run.host, dtype=np.int32)
                keep = ids[ids >= 0][-1:]
            above = above.parent
        pool.acquire(keep)
        self.evictor.room(HOST, group, min(pages, pool.total))
        pool.release(keep, used=False)
        return pool.allocate(min(pages, pool.free))

    def saved(self, copy: PageCopy, ok: Sequence[bool]) -> None:
        group, pieces = self._saving.pop(copy.id)
        index = self._index
        index.now += 1
        came = np.zeros(len(copy.device), dtype=np.bool_)
        came[: len(ok)] = ok[: len(came)]
        self._stats.save_failed += int(np.count_nonzero(~came))
        index.pools[DEVICE][group].busy[copy.device] = False
        at = 0
        done: dict[Node, None] = {}
        for piece in pieces:
            for i in range(len(piece.upper)):
                node = place(piece.node, piece.first + i)
                host = piece.lower[i : i + 1]
                if not (
                    came[at] and node is not None and self._lands(node, group, piece.first + i, int(piece.upper[i]))
                ):
                    index.pools[HOST][group].release(host, used=False)
                else:
                    index.put(HOST, node, group, piece.first + i - node.first, host, entrust=True)
                    self._stats.saved += 1
                    done[node] = None
                at += 1
        index.pools[DEVICE][group].release(copy.device, used=False)
        index.settle()
        if self._storage:
            for node in done:
                self._queue_store(node, Cause.INSERT)

    def _queue_store(self, node: Node, cause: Cause) -> None:
        if self._write.decide(Edge.STORE, cause, node.hits + 1) is Decision.NOW:
            self._stores.append(node)

    def _lands(self, node: Node, group: int, page: int, device: int) -> bool:
        """Whether a saved page may become visible: the tree still has it, no copy of it, and what it continues."""
        at = page - node.first
        run = node.runs[group]
        if run is None or run.device[4 * at : 4 * at + 4] != device.to_bytes(4, "little"):
            return False
        if run.host and run.host[4 * at : 4 * at + 4] != ABSENT:
            return False
        if not self._index.geometry.groups[group].full:
            return True
        if at:
            return run.host[4 * at - 4 : 4 * at] not in (b"", ABSENT)
        above = node.parent
        return above is None or above.parent is None or above.run(group).host[-4:] not in (b"", ABSENT)

    def _ahead(self, tier: int) -> None:
        """Keep the clean reserve: copy down what would be evicted next."""
        share = self._write.reserve
        if not share or not self._has_host or (tier == HOST and not self._storage):
            return
        index = self._index
        for group, pool in enumerate(index.pools[tier]):
            short = int(share * pool.total) - pool.free
            if short <= 0:
                continue
            for segment in index.policies[tier][group].victims(short):
                assert isinstance(segment, Seg)
                node = segment.node
                run = node.runs[group]
                if run is None or run.below[tier]:
                    continue
                short -= segment.pages
                if tier == HOST:
                    if len(self._storable(node, group)):
                        self._queue_store(node, Cause.EVICT)
                elif len(self._savable(node, group)):
                    self._queue_save(node, Cause.EVICT)
                if short <= 0:
                    break

    # endregion

    # region: loads

    def load(self, lease: Lease, group: int, node: Node, pages: Places, device: Ids, host: Ids) -> PageCopy:
        """Start a load of a lease: both sides are held until it ends."""
        copy = PageCopy(next(self._ids), group, device, host)
        self._index.pools[DEVICE][group].acquire(device)
        self._index.pools[HOST][group].acquire(host)
        self._loading[copy.id] = (lease, group, node, pages.astype(np.int32), copy)
        lease.loading.add(copy.id)
        return copy

    def loaded(self, copy: PageCopy, ok: Sequence[bool]) -> list[tuple[int, Ids]]:
        """A load ended. Answers, where the tree already had a page, (page, its id) for the lease to take.

        A page that cannot become visible, for what it continues is gone, stays the lease's own.
        """
        lease, group, node, pages, copy = self._loading.pop(copy.id)
        lease.loading.discard(copy.id)
        index = self._index
        index.now += 1
        came = np.zeros(len(pages), dtype=np.bool_)
        came[: len(ok)] = ok[: len(came)]
        self._stats.loaded += int(np.count_nonzero(came))
        self._stats.load_failed += int(np.count_nonzero(~came))
        theirs: list[tuple[int, Ids]] = []
        for i, page in enumerate(pages.tolist()):
            here = place(node, page)
            if here is None or not self._is_at(here, group, page, int(copy.host[i])):
                lease.published = min(lease.published, page)
                continue
            if not came[i]:
                index.cut(HOST, here, group, np.array([page - here.first]))
                index.close_gap(here)
                continue
            at = page - here.first
            run = here.run(group)
            known = run.ids(DEVICE, here.pages)[at : at + 1]
            if known[0] >= 0:
                theirs.append((page, known))
            elif not index.geometry.groups[group].full or self._continued(here, group, at):
                index.put(DEVICE, here, group, at, copy.device[i : i + 1])
            else:
                lease.published = min(lease.published, page)
        lease.broken = lease.broken or not bool(came.all())
        index.settle()
        return theirs

    def _is_at(self, node: Node, group: int, page: int, host: int) -> bool:
        run = node.runs[group]
        at = page - node.first
        return run is not None and run.host[4 * at : 4 * at + 4] == host.to_bytes(4, "little")

    def _continued(self, node: Node, group: int, at: int) -> bool:
        above = node.parent
        if at or above is None or above.parent is None:
            return len(node.run(group).device) == 4 * at
        return len(above.run(group).device) == 4 * above.pages

    def landed(self, copy: PageCopy) -> None:
        """Let go of both sides of a load, after the lease took what it wanted."""
        self._index.pools[HOST][copy.group].release(copy.host, used=False)
        self._index.pools[DEVICE][copy.group].release(copy.device, used=False)

    # endregion

    # region: stores

    def stores(self, limit: int) -> list[StoreOp]:
        if not self._storage:
            return []
        self._ahead(HOST)
        index = self._index
        moves: list[list[Piece]] = [[] for _ in index.geometry.groups]
        keys: list[list[PageKey]] = [[] for _ in index.geometry.groups]
        while self._stores and limit > 0:
            node = self._stores[0]
            if node.parent is not None:
                for group, spec in enumerate(index.geometry.groups):
                    places = self._storable(node, group)[:limit]
                    if not len(places):
                        continue
                    pool = index.pools[HOST][group]
                    host = np.frombuffer(node.run(group).host, dtype=np.int32)[places]
                    pool.acquire(host)
                    pool.busy[host] = True
                    digests = index.digests(node)
                    for low, high in runs_of(places):
                        moves[group].append(Piece(node, node.first + int(places[low]), host[low:high], NO_IDS))
                    picked = b"".join([digests[32 * at : 32 * at + 32] for at in places.tolist()])
                    keys[group].extend(page_keys(picked, spec.spec))
                    limit -= len(places)
                if limit <= 0 and self._unstored(node):
                    break
            self._stores.popleft()
        ops = []
        for group, pieces in enumerate(moves):
            if pieces:
                ids = np.concatenate([piece.upper for piece in pieces])
                op = StoreOp(next(self._ids), group, tuple(keys[group]), ids)
                self._storing[op.id] = (group, pieces)
                ops.append(op)
        return ops

    def stored(self, op: StoreOp, results: Sequence[PageResult]) -> None:
        self._storing.pop(op.id)
        pool = self._index.pools[HOST][op.group]
        done = np.zeros(len(op.host), dtype=np.bool_)
        done[: len(results)] = [isinstance(result, Done) for result in results][: len(done)]
        self._stats.stored += int(np.count_nonzero(done))
        self._stats.store_failed += int(np.count_nonzero(~done))
        pool.busy[op.host] = False
        pool.stored[op.host[done]] = True
        pool.release(op.host, used=False)

    # endregion

    def copying(self, tier: int, group: int) -> Ids:
        """Ids that copies hold, once for each copy; host pages that are not in the tree yet included."""
        if tier == DEVICE:
            saves = [piece.upper for g, pieces in self._saving.values() if g == group for piece in pieces]
            loads = [copy.device for _, g, _, _, copy in self._loading.values() if g == group]
            return np.concatenate([NO_IDS, *saves, *loads])
        saves = [piece.lower for g, pieces in self._saving.values() if g == group for piece in pieces]
        loads = [copy.host for _, g, _, _, copy in self._loading.values() if g == group]
        stores = [piece.upper for g, pieces in self._storing.values() if g == group for piece in pieces]
        return np.concatenate([NO_IDS, *saves, *loads, *stores])


def runs_of(places: Places) -> Iterable[tuple[int, int]]:
    """(low, high) of each stretch of consecutive numbers."""
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    return pairwise([0, *cuts.tolist(), len(places)])
