"""The facade of the cache: everything a brain asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop

import numpy as np

from stepwell.abc.evict import EvictionPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.runner import PageCopy
from stepwell.abc.sink import Event
from stepwell.abc.write import WritePolicy
from stepwell.cache.admitter import Admitter
from stepwell.cache.audit import audit
from stepwell.cache.fetch import Fetcher
from stepwell.cache.follow import Follower
from stepwell.cache.groups import Geometry
from stepwell.cache.index import Index
from stepwell.cache.ledger import CacheShape, CacheStats, FetchOp, FetchPlan, Lease, Match, Rescue, StoreOp, Usage
from stepwell.cache.match import Found, above_bare, below_a_hole, find, lengths, on_device, present, whole
from stepwell.cache.node import DEVICE, HOST, TIERS, Node
from stepwell.cache.pool import Pool
from stepwell.cache.publish import Publisher
from stepwell.cache.tiering import Tiering
from stepwell.cache.watch import Watch
from stepwell.types import TOKEN_BYTES, GroupSpec, Ids, PageResult, Tier

__all__ = [
    "Cache", "CacheShape", "CacheStats", "FetchOp", "FetchPlan", "Lease", "Match", "Rescue", "StoreOp", "Usage",
]  # fmt: skip

NOWHERE = Node(None, b"", 0, 0, 0, 0)
"""The root of a namespace that has nothing."""
TIER_OF = {DEVICE: Tier.DEVICE, HOST: Tier.HOST}


class Cache:
    """All page bookkeeping of one brain. One thread; no clock, no I/O, no tensor.

    Tokens are int32 bytes throughout (4 bytes a token); lengths are in tokens. A namespace is 32 bytes (`keys.py`).
    """

    stats: CacheStats

    def __init__(
        self,
        shape: CacheShape,
        *,
        evict: Callable[[Tier, GroupSpec], EvictionPolicy],
        write: WritePolicy,
        retain: RetentionPolicy,
        storage: bool = False,
        events: bool = False,
    ) -> None:
        """`storage`: whether there is storage from the start; `events`: whether `drain_events` collects."""
        self.stats = CacheStats()
        self.shape = shape
        self._geometry = Geometry.of(shape.groups, shape.page_size)
        self._pools = (
            tuple(Pool(pages) for pages in shape.device_pages),
            tuple(Pool(pages) for pages in shape.host_pages),
        )
        policies = [tuple(evict(TIER_OF[tier], spec) for spec in shape.groups) for tier in TIERS]
        self._index = Index(self._geometry, self._pools, (policies[DEVICE], policies[HOST]))
        self._watch = Watch(self._index)
        if events:
            self._index.watch = self._watch.record
        self._tiering = Tiering(self._index, self.stats, write, storage)
        self._evictor = self._tiering.evictor
        self._fetcher = Fetcher(self._index, self.stats, self._evictor)
        self._publisher = Publisher(self._index, retain, self._tiering)
        self._admitter = Admitter(self._index, self._tiering)
        self._leases: set[Lease] = set()
        absent = max(1, *shape.device_pages)
        self._absent: Ids = np.full(absent, -1, dtype=np.int32)
        self._absent.setflags(write=False)

    @property
    def geometry(self) -> Geometry:
        """The groups at the cache's page size."""
        return self._geometry

    # region: look up

    def match(self, namespace: bytes, tokens: bytes) -> Match:
        """Longest usable prefix of a prompt over device and host. Counts as a use: recency is kept, all else stays."""
        leads, node, length, _ = self._reach(namespace, tokens)
        geometry, absent = self._geometry, self._absent
        page = geometry.page
        if node.bare and geometry.windowed:
            length, node = above_bare(node, length)
        quick = on_device(geometry, leads, node, length)
        if quick is None:
            length, node = below_a_hole(geometry, node, length, True)
            quick = on_device(geometry, leads, node, length)
        if quick is not None:
            device, first = quick
            self._index.candidates.use(whole(node, length), first)
            length *= page
            return Match(length, length, tuple(device), tuple([absent[: len(ids)] for ids in device]), tuple(first))
        found = find(geometry, leads, node, length)
        host = [absent[: len(d)] if h is None else h for d, h in zip(found.device, found.host, strict=True)]
        self._index.candidates.use(whole(found.node, found.length), found.first)
        total, on_first = found.length * page, found.device_length * page
        return Match(total, on_first, tuple(found.device), tuple(host), tuple(found.first))

    def probe(self, namespace: bytes, tokens: bytes) -> int:
        """`match(...).length` without ids and without counting as a use."""
        return self._find(namespace, tokens)[0].length * self._geometry.page

    def restorable(self, namespace: bytes, tokens: bytes) -> tuple[int, ...]:
        """All lengths at which a prompt could be continued, over device and host, ascending; `match` has the last.

        Does not count as a use. Several ranks agree by `match.agreed`, never by the least of their longest.
        """
        _, node, length, _ = self._reach(namespace, tokens)
        path = self._index.path(node, self._index.roots.get(namespace, node))
        good = lengths(self._geometry, length, present(self._geometry, path, length, length))
        return tuple((np.flatnonzero(good)[1:] * self._geometry.page).tolist())

    @property
    def version(self) -> int:
        """Changes whenever an answer of `probe` may have changed."""
        return self._index.version

    def follow(self, follower: Follower) -> Index:
        """Tell one, in place of any other, what happens to the tree, which it may read."""
        self._index.follower = follower
        return self._index

    def _find(self, namespace: bytes, tokens: bytes, *, load: bool = True) -> tuple[Found, int]:
        """What is usable of a prompt, and where it leaves another path."""
        leads, node, length, fork = self._reach(namespace, tokens)
        return find(self._geometry, leads, node, length, load=load), fork

    def _reach(self, namespace: bytes, tokens: bytes) -> tuple[list[bytes], Node, int, int]:
        """Leading ids on the way, the last node, and the pages that the tree has of a prompt but for its last token.

        Then the pages at which the prompt leaves a path that goes on otherwise; 0 where it leaves none.
        """
        index = self._index
        root = index.roots.get(namespace)
        if root is None:
            return [], NOWHERE, 0, 0
        leads, node, at, inside = index.walk(root, tokens)
        usable = len(tokens) - TOKEN_BYTES
        fork = at // index.step if inside is not None or node.children else 0
        return leads, inside or node, (at if at <= usable else max(0, usable)) // index.step, fork

    # endregion

    # region: a request's pages

    def fits(self, length: int) -> bool:
        """Whether a request of `length` tokens (prompt and answer) can ever run alone, by group, with windows."""
        return all(
            group.runs_in(length) <= pool.total
            for group, pool in zip(self._geometry.groups, self._pools[DEVICE], strict=True)
        )

    def largest(self) -> int:
        """The largest length for which `fits` holds (for the refusal's message)."""
        return min(
            group.longest_in(pool.total) for group, pool in zip(self._geometry.groups, self._pools[DEVICE], strict=True)
        )

    def admit(
        self,
        namespace: bytes,
        tokens: bytes,
        upto: Callable[[int], int],
        *,
        load: bool = True,
        reserve: int | Sequence[int] = 0,
        priority: int = 0,
        fetched: int = 0,
        fetched_from: int = 0,
    ) -> Lease | None:
        """Match a prompt, take the pages found, and allocate those to load and to compute up to `upto(matched length)`.

        One step, so nothing found can be evicted in between. None, and nothing changed, where room cannot be made while
        `reserve` pages of each group (or so many of each, by group) stay free or evictable. `load=False`: use device
        pages only (after a failed load).
        Tokens from `fetched_from` to `fetched` are known to have come from storage for this request: those that are not
        on device count as `cached.storage`.
        """
        found, fork = self._find(namespace, tokens, load=load)
        lease = self._admitter.admit(namespace, found, upto, reserve, priority, range(fetched_from, fetched))
        if lease is not None:
            lease.fork, lease.prompt = fork, len(tokens) // TOKEN_BYTES
            self._leases.add(lease)
        return lease

    def would_admit(
        self,
        namespace: bytes,
        tokens: bytes,
        upto: Callable[[int], int],
        *,
        load: bool = True,
        reserve: Sequence[int],
        without: Sequence[Lease],
    ) -> bool:
        """Whether `admit` would find room once these leases were closed and the steps in flight had completed.

        Pages that others hold, too, or copies, do not count as room; nothing changes.
        """
        found, _ = self._find(namespace, tokens, load=load)
        return self._admitter.would_admit(found, upto, reserve, without)

    def extend(self, lease: Lease, upto: int) -> bool:
        """Allocate pages up to `upto` tokens. False, and nothing changed, where room cannot be made."""
        return self._admitter.extend(lease, upto)

    def publish(
        self, lease: Lease, tokens: bytes, *, final: bool = False, expires: float | None = None, digests: bytes = b""
    ) -> None:
        """Put the whole pages of `tokens`, all computed and written, into the tree.

        Where the tree has a page already the lease adopts it and its own goes to limbo (see `Lease.edits`). Each call
        gives a prefix extension of the last. `final`: the request ends here (retention applies). Write policy is asked.
        `digests`: of the whole pages, where known; they are worked out where not and needed.
        """
        if lease.closed or lease.broken or lease.loading:
            return
        self._publisher.publish(lease, tokens, digests, final, expires)

    def trim(self, lease: Lease, length: int) -> None:
        """Release pages that no group needs to continue at `length` and beyond. Never inside ceil_p(max(W, p))."""
        for group in self._geometry.windows:
            first = lease.trimmed[group]
            keep = min(self._geometry.groups[group].keeps_from(length), lease.pages)
            if keep <= first:
                continue
            table = lease.tables[group]
            ids = table[first:keep]
            self._pools[DEVICE][group].release(ids[ids >= 0])
            table[first:keep] = -1
            lease.edits.append((group, first, table[first:keep].copy()))
            lease.trimmed[group] = keep

    def close(self, lease: Lease) -> None:
        """Give everything back, from any state; a second call does nothing. Loads in flight keep their pages."""
        if lease.closed:
            return
        lease.closed = True
        self._leases.remove(lease)
        for group, pool in enumerate(self._pools[DEVICE]):
            table = lease.tables[group]
            ids = table[: lease.pages]
            pool.release(ids[ids >= 0])
            table[:] = -1

    def available(self) -> tuple[int, ...]:
        """Per group: device pages that are free or could be evicted now."""
        return tuple(pool.available() for pool in self._pools[DEVICE])

    def step_launched(self, number: int) -> None:
        """A step is in flight: device pages released from now on wait in limbo until it has completed."""
        for pool in self._pools[DEVICE]:
            pool.launch(number)

    def step_completed(self, number: int) -> None:
        """Steps up to `number` have completed: their limbo is freed."""
        for pool in self._pools[DEVICE]:
            pool.complete(number)

    # endregion

    # region: between device and host

    def loaded(self, lease: Lease, copy: PageCopy, ok: Sequence[bool]) -> bool:
        """A load of `lease.loads` ended, also of a lease closed by then. Pages that came become visible on device.

        True if all came. Where not, the failed host pages are dropped and the request must be admitted anew.
        """
        theirs = self._tiering.loaded(copy, ok)
        if not lease.closed:
            for page, ids in theirs:
                self._publisher.take(lease, copy.group, page, ids)
        self._tiering.landed(copy)
        return len(ok) >= len(copy.device) and all(ok)

    def saves(self, limit: int) -> list[PageCopy]:
        """Take up to `limit` pages of saves that the write policy asked for; each owns its pages until `saved`."""
        return self._tiering.saves(limit)

    def rescue(self, namespace: bytes, computed: bytes) -> Rescue:
        """Save what a request computed that gives way, whatever the write policy says: as much as host has room for.

        To be called once that is published and the lease is closed. The windows at its end are retained. Until the
        copies have ended no page of theirs leaves device, and until `let_go` none leaves host.
        """
        root = self._index.roots.get(namespace, NOWHERE)
        _, node, at, inside = self._index.walk(root, computed)
        return self._tiering.rescue(self._index.path(inside or node, root), at // self._geometry.step)

    def let_go(self, rescue: Rescue) -> None:
        """The request is back, or gone: from now on its pages may leave host."""
        self._tiering.let_go(rescue)

    def saved(self, copy: PageCopy, ok: Sequence[bool]) -> None:
        """A save ended; pages that came become visible on host, and the write policy is asked about the store."""
        self._tiering.saved(copy, ok)

    # endregion

    # region: between host and storage

    @property
    def storage(self) -> bool:
        """Whether stores and fetches are planned at all."""
        return self._tiering.storing.attached

    def attach_storage(self) -> None:
        """Plan stores and fetches from now on. The write policy is asked about what host has, a little at each call."""
        self._tiering.storing.attach()

    def detach_storage(self) -> None:
        """Plan none any more, and forget what storage holds. What is in flight still ends by `stored` and `fetched`."""
        self._tiering.storing.detach()
        self._fetcher.forget_stored()
        self._tell_cleared()

    def forget_stored(self) -> None:
        """Storage was cleared: nothing counts as stored, nor will what is in flight."""
        self._tiering.storing.forget()
        self._fetcher.forget_stored()
        self._tell_cleared()

    def _tell_cleared(self) -> None:
        if self._index.watch is not None:
            self._watch.storage_cleared()

    @property
    def catching_up(self) -> bool:
        """Whether there is more to ask the write policy about since `attach_storage`, in further calls of `stores`."""
        return self._tiering.storing.catching_up

    def stores(self, limit: int) -> list[StoreOp]:
        """Take up to `limit` pages of stores that the write policy asked for."""
        return self._tiering.stores(limit)

    def stored(self, op: StoreOp, results: Sequence[PageResult]) -> None:
        """A store ended; one result a page."""
        there = self._tiering.storing.ended(op, results)
        if self._index.watch is not None:
            for before, keys in there:
                self._watch.stored(op.group, before, keys)

    def plan_fetch(self, namespace: bytes, tokens: bytes, digests: bytes = b"") -> FetchPlan | None:
        """What storage could add for a prompt; None if nothing. `digests`: of its pages, if known (32 bytes each)."""
        if not self._tiering.storing.attached or not all(pool.total for pool in self._pools[HOST]):
            return None
        return self._fetcher.plan(namespace, tokens, digests)

    def start_fetch(self, plan: FetchPlan, present: Sequence[Sequence[bool]], limit: int) -> FetchOp | None:
        """Allocate host pages for what is `present` (per group, parallel to `plan.keys`) and useful, up to `limit`."""
        return self._fetcher.start(plan, present, limit)

    def fetched(self, op: FetchOp, results: Sequence[Sequence[PageResult]]) -> int:
        """A fetch ended, also one given up; results per read of `op.reads` (fewer: the rest was not tried).

        Good pages become visible on host where they continue what is there, the rest is freed. Answers what is usable.
        """
        return self._fetcher.fetched(op, results) * self._geometry.page

    # endregion

    # region: the whole

    def expire(self, now: float) -> None:
        """Drop pages whose `expires` has passed and that nobody else used since."""
        heap = self._publisher.expiring
        late = []
        while heap and heap[0][0] <= now:
            until, _, node = heappop(heap)
            if node.parent is not None and node.expires == until:
                late.append(node)
        for node in sorted(late, key=lambda node: node.first, reverse=True):
            above = node.parent
            if above is not None and not node.children:
                self._index.remove(node)
                self._index.close_gap(above)
        self._index.settle()

    def flush(self) -> None:
        """Forget everything that no request or copy holds, on device and host."""
        for tier in (HOST, DEVICE):
            for group, pool in enumerate(self._pools[tier]):
                self._evictor.evict(tier, group, pool.total)

    def watch(self, on: bool) -> None:
        """Collect events from now on, or cease to."""
        self._index.watch = self._watch.record if on else None
        if not on:
            self._watch.drain()

    def present(self) -> list[Event]:
        """All that device and host have, as events; digests that nobody asked for yet are worked out."""
        return self._watch.present()

    def drain_events(self) -> list[Event]:
        """Events since the last call."""
        return self._watch.drain()

    def usage(self) -> dict[Tier, tuple[Usage, ...]]:
        """Per tier (device, host) and group."""
        return {
            TIER_OF[tier]: tuple(
                Usage(pool.total, pool.free, pool.limbo, pool.tree_only, pool.held) for pool in self._pools[tier]
            )
            for tier in TIERS
        }

    def audit(self) -> None:
        """Prove ownership: no id twice, free + limbo + tree-only + held = total in every pool. Raises AuditError."""
        groups = range(len(self._geometry.groups))
        copies = {(tier, group): self._tiering.copying(tier, group) for tier in TIERS for group in groups}
        for group in groups:
            copies[HOST, group] = np.concatenate([copies[HOST, group], *self._fetcher.copying(group)])
        audit(self._index, self._leases, copies)

    # endregion
