"""Copies between device and host: saves as the write policy asks for them, loads as requests need them.

An operation in flight remembers nodes. A split leaves the tail in the node it had, so what became of a page is found by
climbing from there; that it is the same page is checked by its id, which cannot be reused while the copy holds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np

from stepwell.abc.runner import PageCopy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.evict import Evictor
from stepwell.cache.index import Index
from stepwell.cache.ledger import CacheStats, Lease, Rescue, StoreOp
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node, Places, Run, Seg
from stepwell.cache.pieces import NOWHERE, Piece, kept, runs_of, spans, stretches
from stepwell.cache.pool import NO_IDS, Flags
from stepwell.cache.storing import Storing
from stepwell.types import Ids


class Tiering:
    """Saves and loads, queued and in flight."""

    def __init__(self, index: Index, stats: CacheStats, write: WritePolicy, storage: bool) -> None:
        self._index = index
        self._stats = stats
        self._write = write
        self._has_host = any(pool.total for pool in index.pools[HOST])
        self._ids = count(1)
        self._wanted: deque[Node] = deque()
        self._saving: dict[int, tuple[int, list[Piece]]] = {}
        self._rescues: set[int] = set()
        """Saves whose pages stay on device until they have ended."""
        self._held: dict[Rescue, None] = {}
        self._loading: dict[int, tuple[Lease, int, Node, Ids, PageCopy]] = {}
        self.storing = Storing(index, stats, write, self._ids, storage)
        self._ended_saves = 0
        self._ahead_of = {DEVICE: -1, HOST: -1}
        self.evictor = Evictor(index, stats, self.unsaved, self._letting_go)

    # region: what the write policy wants

    def unsaved(self, tier: int, node: Node, group: int, places: Places) -> Flags:
        """Which pages of a node the policy wants a tier down that never were there."""
        run = node.runs[group]
        lacking = np.zeros(len(places), dtype=np.bool_)
        if run is None or not (self.storing.attached if tier == HOST else self._index.pools[HOST][group].total):
            return lacking
        lacking = ~self._index.pools[tier][group].stored[run.ids(tier, node.pages)[places]]
        if tier == DEVICE:
            lacking &= run.ids(HOST, node.pages)[places] < 0
        if not lacking.any() or (tier == DEVICE and node.wanted):
            return lacking
        edge = Edge.STORE if tier == HOST else Edge.SAVE
        wanted = self._write.decide(edge, Cause.EVICT, node.hits + 1) is Decision.NOW
        return lacking & wanted

    def consider(self, nodes: Iterable[Node], cause: Cause) -> None:
        """Ask the write policy about nodes that were inserted or used."""
        if not self._has_host:
            return
        for node in nodes:
            if self._lacks(node):
                self._queue_save(node, cause)
            if cause is Cause.HIT and self.storing.attached and self.storing.lacks(node):
                self.storing.ask(node, cause)

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
        return np.flatnonzero(able & kept(self._index, run, group))

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
        return self._copies(moves)

    def rescue(self, path: Sequence[Node], end: int) -> Rescue:
        """Save what a path has up to page `end`, windows there included, and hold on host what it is loaded from."""
        if path:
            self._index.retained.retain(path[-1], [end])
        held = self._on_host(path, end)
        moves: list[list[Piece]] = [[] for _ in held]
        wanted = sum(len(self._savable(node, group)) for node in path for group in range(len(held)))
        taken = self._take(path, wanted, moves) if wanted else 0
        self._stats.rescued += taken
        self._stats.rescue_dropped += wanted - taken
        new = [np.concatenate([NO_IDS, *(piece.lower for piece in pieces)]) for pieces in moves]
        copies = self._copies(moves)
        self._rescues.update(copy.id for copy in copies)
        rescue = Rescue(copies, tuple(np.concatenate(pair) for pair in zip(held, new, strict=True)))
        for group, ids in enumerate(rescue.host):
            self._index.pools[HOST][group].acquire(ids)
        self._held[rescue] = None
        return rescue

    def let_go(self, rescue: Rescue) -> None:
        del self._held[rescue]
        for group, ids in enumerate(rescue.host):
            self._index.pools[HOST][group].release(ids, used=False)

    def _on_host(self, path: Sequence[Node], end: int) -> list[Ids]:
        """Host pages of a path, there or on their way, without which it could not be continued at page `end`."""
        index = self._index
        held = []
        for group, need in enumerate(index.geometry.groups):
            device, host = [NO_IDS], [NO_IDS]
            for node in path:
                if (run := node.runs[group]) is not None:
                    start, stop = max(0, need.first(end) - node.first), max(0, end - node.first)
                    device.append(run.ids(DEVICE, node.pages)[start:stop])
                    host.append(run.ids(HOST, node.pages)[start:stop])
            there = np.concatenate(host)
            there = there[there >= 0]
            pieces = [piece for g, pieces in self._saving.values() if g == group for piece in pieces]
            coming = [piece.lower[np.isin(piece.upper, np.concatenate(device))] for piece in pieces]
            held.append(np.concatenate([there[-1:] if need.full else there, *coming]))
        return held

    def _copies(self, moves: list[list[Piece]]) -> list[PageCopy]:
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
        chain = [node]
        while (above := chain[-1].parent) is not None and above.parent is not None and self._lacks(above):
            chain.append(above)
        return self._take(chain[::-1], limit, moves)

    def _take(self, chain: Sequence[Node], limit: int, moves: list[list[Piece]]) -> int:
        """Allocate host pages for nodes in a row, and hold both sides; answers how many."""
        index = self._index
        taken = 0
        for part in chain:
            for group in range(len(part.runs)):
                places = self._savable(part, group)[: limit - taken]
                if not len(places):
                    continue
                host = self._host_pages(part, chain, group, len(places))
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

    def _host_pages(self, node: Node, chain: Sequence[Node], group: int, pages: int) -> Ids:
        """Up to `pages` free host pages, none of them taken from the path that leads to the node.

        Nor from the window that is being saved, which a host smaller than it would otherwise hold in turns.
        """
        pool = self._index.pools[HOST][group]
        if self._index.geometry.groups[group].full:
            keep = self._last_on_host(node, group)
        else:
            held = [np.frombuffer(run.host, dtype=np.int32) for part in chain if (run := part.runs[group]) is not None]
            keep = np.concatenate([NO_IDS, *(ids[ids >= 0] for ids in held)])
        pool.acquire(keep)
        self.evictor.room(HOST, group, min(pages, pool.total))
        pool.release(keep, used=False)
        return pool.allocate(min(pages, pool.free))

    def _last_on_host(self, node: Node | None, group: int) -> Ids:
        """The page on host that lies deepest on the path to a node; while it stays, those before it do."""
        while node is not None:
            run = node.runs[group]
            if run is not None and run.host:
                ids = np.frombuffer(run.host, dtype=np.int32)
                if (ids >= 0).any():
                    return ids[ids >= 0][-1:]
            node = node.parent
        return NO_IDS

    def saved(self, copy: PageCopy, ok: Sequence[bool]) -> None:
        group, pieces = self._saving.pop(copy.id)
        self._rescues.discard(copy.id)
        index = self._index
        index.candidates.now += 1
        self._ended_saves += 1
        came = np.zeros(len(copy.device), dtype=np.bool_)
        came[: len(ok)] = ok[: len(came)]
        self._stats.save_failed += int(np.count_nonzero(~came))
        index.pools[DEVICE][group].busy[copy.device] = False
        index.pools[DEVICE][group].stored[copy.device[came]] = True
        at = 0
        done: dict[Node, None] = {}
        for piece in pieces:
            for node, low, high in spans(piece.node, piece.first, len(piece.upper)):
                host = piece.lower[low:high]
                good = came[at + low : at + high]
                if node is not None:
                    first = piece.first + low - node.first
                    good = self._lands(node, group, first, piece.upper[low:high], good)
                    for start, end in stretches(good):
                        index.put(HOST, node, group, first + start, host[start:end], entrust=True)
                        done[node] = None
                    self._stats.saved += int(np.count_nonzero(good))
                else:
                    good = np.zeros(high - low, dtype=np.bool_)
                index.pools[HOST][group].release(host[~good], used=False)
            at += len(piece.upper)
        index.pools[DEVICE][group].release(copy.device, used=False)
        index.settle()
        if self.storing.attached:
            for node in done:
                self.storing.ask(node, Cause.INSERT)

    def _lands(self, node: Node, group: int, first: int, device: Ids, came: Flags) -> Flags:
        """Which saved pages may become visible: the tree still has them, no copy of them, and what they continue."""
        run = node.runs[group]
        if run is None:
            return np.zeros(len(device), dtype=np.bool_)
        last = first + len(device)
        there = run.ids(HOST, node.pages)[first:last] >= 0
        good: Flags = came & ~there & (run.ids(DEVICE, node.pages)[first:last] == device)
        if self._index.geometry.groups[group].full:
            unbroken = np.logical_and.accumulate(good | there)
            good &= unbroken & self._continued_on_host(node, run, first)
        return good

    def _continued_on_host(self, node: Node, run: Run, first: int) -> bool:
        above = node.parent
        if first:
            return run.host[4 * first - 4 : 4 * first] not in (b"", ABSENT)
        if above is None or above.parent is None:
            return True
        return above.run(run.segments[HOST].group).host[-4:] not in (b"", ABSENT)

    def _ahead(self, tier: int) -> None:
        """Keep the clean reserve: copy down what would be evicted next."""
        share = self._write.reserve
        if not share or not self._has_host or (tier == HOST and not self.storing.attached):
            return
        index = self._index
        news = self._news(tier)
        if news == self._ahead_of[tier]:
            return
        self._ahead_of[tier] = news
        for group, pool in enumerate(index.pools[tier]):
            short = int(share * pool.total) - pool.free
            if short <= 0:
                continue
            for segment in index.candidates.policies[tier][group].victims(short):
                assert isinstance(segment, Seg)
                node = segment.node
                run = node.runs[group]
                if run is None or run.below[tier]:
                    continue
                short -= segment.pages
                if tier == HOST:
                    if len(self.storing.storable(node, group)):
                        self.storing.ask(node, Cause.EVICT)
                elif len(self._savable(node, group)):
                    self._queue_save(node, Cause.EVICT)
                if short <= 0:
                    break

    def _news(self, tier: int) -> int:
        """Grows with every use and every page taken, but not with what copying down from a tier does by itself.

        Once each time is enough. In an idle cache a copy that fails, or takes the place of the one before it, would
        otherwise be made again for ever.
        """
        own = self._ended_saves if tier == DEVICE else 0
        return self._index.candidates.now - own + sum(pool.taken for pool in self._index.pools[tier])

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
        index.candidates.now += 1
        came = np.zeros(len(pages), dtype=np.bool_)
        came[: len(ok)] = ok[: len(came)]
        self._stats.loaded += int(np.count_nonzero(came))
        self._stats.load_failed += int(np.count_nonzero(~came))
        index.pools[DEVICE][group].stored[copy.device] = True
        theirs: list[tuple[int, Ids]] = []
        for low, high in runs_of(pages):
            for here, start, end in spans(node, int(pages[low]), high - low):
                span = slice(low + start, low + end)
                kept = int(pages[low + start])
                if here is not None:
                    known, kept = self._land(here, group, kept, copy.device[span], copy.host[span], came[span])
                    if known is not None:
                        theirs.append((int(pages[low + start]), known))
                if kept < int(pages[low]) + end:
                    lease.published = min(lease.published, kept)
        lease.broken = lease.broken or not bool(came.all())
        index.settle()
        return theirs

    def _land(self, node: Node, group: int, page: int, device: Ids, host: Ids, came: Flags) -> tuple[Ids | None, int]:
        """Loaded pages become visible where the tree still has their source, and none on device.

        Answers the ids that the tree has on device already, -1 elsewhere, and the first page that is the lease's own.
        """
        index = self._index
        run = node.runs[group]
        if run is None:
            return None, page
        at = page - node.first
        same = run.ids(HOST, node.pages)[at : at + len(host)] == host
        known = run.ids(DEVICE, node.pages)[at : at + len(host)]
        new = same & came & (known < 0)
        full = index.geometry.groups[group].full
        if full and not self._continued(node, group):
            new[:] = False
        for low, high in stretches(new):
            if full and at + low != len(run.device) // 4:
                new[low:high] = False
                continue
            index.put(DEVICE, node, group, at + low, device[low:high])
        bad = np.flatnonzero(same & ~came)
        if len(bad):
            index.cut(HOST, node, group, bad + at)
            index.close_gap(node)
        known = np.where(came, known, -1).astype(np.int32)
        own = np.flatnonzero(came & ~new & (known < 0))
        return known if (known >= 0).any() else None, page + (int(own[0]) if len(own) else len(host))

    def _continued(self, node: Node, group: int) -> bool:
        """Whether all of a full group before the node is on device."""
        above = node.parent
        return above is None or above.parent is None or len(above.run(group).device) == 4 * above.pages

    def landed(self, copy: PageCopy) -> None:
        """Let go of both sides of a load, after the lease took what it wanted."""
        self._index.pools[HOST][copy.group].release(copy.host, used=False)
        self._index.pools[DEVICE][copy.group].release(copy.device, used=False)

    # endregion

    def stores(self, limit: int) -> list[StoreOp]:
        if not self.storing.attached:
            return []
        self._ahead(HOST)
        return self.storing.take(limit)

    def copying(self, tier: int, group: int) -> Ids:
        """Ids that copies hold, once for each copy, and rescues; host pages that are not in the tree yet included."""
        if tier == DEVICE:
            return self._moving(tier, group)
        return np.concatenate([self._moving(tier, group), *(rescue.host[group] for rescue in self._held)])

    def _moving(self, tier: int, group: int) -> Ids:
        if tier == DEVICE:
            saves = [piece.upper for g, pieces in self._saving.values() if g == group for piece in pieces]
            loads = [copy.device for _, g, _, _, copy in self._loading.values() if g == group]
            return np.concatenate([NO_IDS, *saves, *loads])
        saves = [piece.lower for g, pieces in self._saving.values() if g == group for piece in pieces]
        loads = [copy.host for _, g, _, _, copy in self._loading.values() if g == group]
        return np.concatenate([NO_IDS, *saves, *loads, *self.storing.holding(group)])

    def _letting_go(self, tier: int, group: int) -> Ids:
        """Ids that copies hold and the tree may let go of; what a rescue holds stays, else it were saved for nobody."""
        ids = self._moving(tier, group)
        if tier == HOST or not self._rescues:
            return ids
        rescues = [piece.upper for id in self._rescues if self._saving[id][0] == group for piece in self._saving[id][1]]
        return ids[~np.isin(ids, np.concatenate([NO_IDS, *rescues]))]
