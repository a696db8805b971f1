"""Stores: what the write policy wants in storage, on its way there, and what of it counts as stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.chain import digest_before
from stepwell.cache.chain import digests as digests_of
from stepwell.cache.index import Index
from stepwell.cache.keys import page_keys
from stepwell.cache.ledger import CacheStats, StoreOp
from stepwell.cache.node import HOST, Node, Places
from stepwell.cache.pieces import NOWHERE, Piece, kept, runs_of, stretches
from stepwell.cache.pool import NO_IDS
from stepwell.types import Done, Ids, PageKey, PageResult

CATCH_UP = 64
"""Nodes that are looked at in one go once storage was attached: a fraction of a millisecond."""


class Storing:
    """Stores, queued and in flight. `ids` numbers operations."""

    def __init__(self, index: Index, stats: CacheStats, write: WritePolicy, ids: Iterator[int], attached: bool) -> None:
        self._index = index
        self._stats = stats
        self._write = write
        self._ids = ids
        self.attached = attached
        """Whether there is storage: whether stores and fetches are planned at all."""
        self._queue: deque[Node] = deque()
        self._moving: dict[int, tuple[int, list[Piece]]] = {}
        self._since = 0
        """Stores of lower ids were for a storage that is gone, or has forgotten all."""
        self._unseen: list[Node] = []
        """Nodes that were there before storage was, and have not been looked at yet."""

    def attach(self) -> None:
        """Storage is there from now on: what the host has is offered to the write policy, a little each time."""
        self.attached = True
        self._unseen = list(self._index.roots.values())

    def detach(self) -> None:
        """There is no storage any more."""
        self.attached = False
        self._queue.clear()
        self._unseen = []
        self.forget()

    def forget(self) -> None:
        """Storage has none of the host's pages, nor any that are on their way to it."""
        self._since = next(self._ids)
        for pool in self._index.pools[HOST]:
            pool.stored[:] = False

    @property
    def catching_up(self) -> bool:
        """Whether pages that were there before storage was wait to be looked at."""
        return bool(self._unseen)

    def _catch_up(self) -> None:
        """Parents first, so that no node's digests take long. What a split hides is stored when it is used again."""
        unseen = self._unseen
        for _ in range(CATCH_UP):
            if not unseen:
                break
            node = unseen.pop()
            unseen.extend(node.children.values())
            if node.parent is not None and self.lacks(node):
                self.ask(node, Cause.INSERT)

    def lacks(self, node: Node) -> bool:
        """Whether a node has pages that could be stored."""
        return any(len(self.storable(node, group)) for group in range(len(node.runs)))

    def storable(self, node: Node, group: int) -> Places:
        """Pages of a node that could be stored now: on host, not in storage, not on their way."""
        run = node.runs[group]
        if run is None or not run.host:
            return NOWHERE
        ids = np.frombuffer(run.host, dtype=np.int32)
        pool = self._index.pools[HOST][group]
        able = (ids >= 0) & ~pool.stored[ids] & ~pool.busy[ids]
        return np.flatnonzero(able & kept(self._index, run, group))

    def ask(self, node: Node, cause: Cause) -> None:
        """Ask the write policy about a node."""
        if self._write.decide(Edge.STORE, cause, node.hits + 1) is Decision.NOW:
            self._queue.append(node)

    def take(self, limit: int) -> list[StoreOp]:
        """Operations for up to `limit` pages."""
        if self._unseen and not self._queue:
            self._catch_up()
        index = self._index
        moves: list[list[Piece]] = [[] for _ in index.geometry.groups]
        keys: list[list[PageKey]] = [[] for _ in index.geometry.groups]
        while self._queue and limit > 0:
            node = self._queue[0]
            if node.parent is not None:
                for group, spec in enumerate(index.geometry.groups):
                    places = self.storable(node, group)[:limit]
                    if not len(places):
                        continue
                    pool = index.pools[HOST][group]
                    host = np.frombuffer(node.run(group).host, dtype=np.int32)[places]
                    pool.acquire(host)
                    pool.busy[host] = True
                    digests = digests_of(node, index.geometry.page)
                    for low, high in runs_of(places):
                        page = int(places[low])
                        before = digest_before(node, page, index.geometry.page)
                        moves[group].append(Piece(node, node.first + page, host[low:high], NO_IDS, before))
                    picked = b"".join([digests[32 * at : 32 * at + 32] for at in places.tolist()])
                    keys[group].extend(page_keys(picked, spec.spec))
                    limit -= len(places)
                if limit <= 0 and self.lacks(node):
                    break
            self._queue.popleft()
        ops = []
        for group, pieces in enumerate(moves):
            if pieces:
                ids = np.concatenate([piece.upper for piece in pieces])
                op = StoreOp(next(self._ids), group, tuple(keys[group]), ids)
                self._moving[op.id] = (group, pieces)
                ops.append(op)
        return ops

    def ended(self, op: StoreOp, results: Sequence[PageResult]) -> list[tuple[PageKey | None, tuple[PageKey, ...]]]:
        """A store ended. Answers what storage has now: the key before, and the keys, of each stretch of pages."""
        group, pieces = self._moving.pop(op.id)
        pool = self._index.pools[HOST][op.group]
        done = np.zeros(len(op.host), dtype=np.bool_)
        done[: len(results)] = [isinstance(result, Done) for result in results][: len(done)]
        self._stats.stored += int(np.count_nonzero(done))
        self._stats.store_failed += int(np.count_nonzero(~done))
        pool.busy[op.host] = False
        pool.release(op.host, used=False)
        if op.id < self._since:
            return []
        pool.stored[op.host[done]] = True
        tag = self._index.geometry.groups[group].spec.tag
        there: list[tuple[PageKey | None, tuple[PageKey, ...]]] = []
        at = 0
        for piece in pieces:
            for low, high in stretches(done[at : at + len(piece.upper)]):
                before = op.keys[at + low - 1] if low else piece.before + tag if piece.first else None
                there.append((before, op.keys[at + low : at + high]))
            at += len(piece.upper)
        return there

    def holding(self, group: int) -> list[Ids]:
        """Host ids that stores hold."""
        return [piece.upper for g, pieces in self._moving.values() if g == group for piece in pieces]
