"""A cache without time: each request's pages are there at once. The upper bound that hit rates are measured against."""

from __future__ import annotations

import numpy as np

from stepwell.abc.evict import EvictionPolicy
from stepwell.cache.evict import Evictor
from stepwell.cache.groups import Geometry
from stepwell.cache.index import Index
from stepwell.cache.ledger import CacheStats
from stepwell.cache.node import DEVICE
from stepwell.cache.pool import NO_IDS, Flags, Pool
from stepwell.cache.recency import Recency
from stepwell.types import Full, GroupSpec, Ids

NAMESPACE = bytes(32)
NOTHING: Flags = np.zeros(1, dtype=np.bool_)


class InstantCache:
    """One tier, one full group, on the index, pool and policies that serve requests."""

    def __init__(self, pages: int, page_size: int, policy: EvictionPolicy | None = None) -> None:
        spec = GroupSpec("full", Full(), 1, (0,))
        self._pool = Pool(pages)
        self._index = Index(
            Geometry.of((spec,), page_size),
            ((self._pool,), (Pool(0),)),
            ((policy or Recency(),), (Recency(),)),
        )
        self._evictor = Evictor(self._index, CacheStats(), lambda *_: NOTHING, lambda *_: NO_IDS)

    def request(self, tokens: bytes) -> int:
        """Pages of the prompt that are cached; those that are not are inserted, as far as room can be made."""
        index, pool = self._index, self._pool
        step = index.geometry.step
        tokens = tokens[: len(tokens) // step * step]
        index.candidates.now += 1
        root = index.root(NAMESPACE)
        _, node, at, inside = index.walk(root, tokens)
        if inside is not None:
            node = index.split(inside, at // step - inside.first)
        index.candidates.use(node, [0])
        hits = at // step
        new = len(tokens) // step - hits
        if not new:
            return hits
        if pool.free < new:
            own: Ids = np.frombuffer(node.lead, dtype=np.int32)
            pool.acquire(own)
            self._evictor.evict(DEVICE, 0, new - pool.free)
            pool.release(own)
        end = at + min(new, pool.free) * step
        if node.parent is None:
            node = index.root(NAMESPACE)
        while at < end:
            node = index.add(node, tokens[at : min(at + index.cap * step, end)])
            at = node.end
            ids = pool.allocate(node.pages)
            index.put(DEVICE, node, 0, 0, ids, entrust=True)
        return hits
