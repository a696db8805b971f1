"""From storage to host: what to ask for, which pages to read, and what of them becomes visible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from stepwell.cache.evict import Evictor
from stepwell.cache.index import Index
from stepwell.cache.keys import page_digests, page_keys
from stepwell.cache.ledger import CacheStats, FetchOp, FetchPlan
from stepwell.cache.match import flags, lengths, longest, present
from stepwell.cache.node import ABSENT, HOST, Node, Places
from stepwell.cache.pool import NO_IDS, Flags
from stepwell.types import DIGEST_BYTES, TOKEN_BYTES, Done, Ids, Missing, PageKey, PageResult

BATCH = 64
"""Pages of one read."""


class Fetcher:
    """Fetches, planned and in flight."""

    def __init__(self, index: Index, stats: CacheStats, evictor: Evictor) -> None:
        self._index = index
        self._stats = stats
        self._evictor = evictor
        self._ids = count(1)
        self._fetching: dict[int, FetchOp] = {}
        self._since = 0
        """Fetches of lower ids are from a storage that is gone, or has forgotten all."""

    def forget_stored(self) -> None:
        """What is under way is not in storage any more when it comes."""
        self._since = next(self._ids)

    def plan(self, namespace: bytes, tokens: bytes, digests: bytes) -> FetchPlan | None:
        geometry = self._index.geometry
        total = max(0, len(tokens) - TOKEN_BYTES) // geometry.step
        path, reached = self._walk(namespace, tokens, total)
        now = longest(geometry, path[-1], reached, True)[0] if path else 0
        if now == total:
            return None
        tokens = tokens[: total * geometry.step]
        known = len(digests) // DIGEST_BYTES
        if known < total:
            seed = digests[-DIGEST_BYTES:] or namespace
            digests += page_digests(seed, tokens[known * geometry.step :], geometry.page)
        keys: list[tuple[PageKey, ...]] = []
        pages: list[tuple[int, ...]] = []
        for g, group in enumerate(geometry.groups):
            start = reached if group.full else min(group.first(length) for length in range(now + 1, total + 1))
            there = flags(path, g, reached, on_host=True) if not group.full else b"\x01" * reached
            missing = [page for page in range(start, total) if page >= reached or not there[page]]
            picked = b"".join([digests[DIGEST_BYTES * page : DIGEST_BYTES * (page + 1)] for page in missing])
            keys.append(page_keys(picked, group.spec))
            pages.append(tuple(missing))
        return FetchPlan(namespace, tokens, tuple(keys), tuple(pages))

    def _walk(self, namespace: bytes, tokens: bytes, total: int) -> tuple[list[Node], int]:
        """Nodes along a prompt and the pages reached, at most `total`."""
        root = self._index.roots.get(namespace)
        if root is None:
            return [], 0
        _, node, at, inside = self._index.walk(root, tokens)
        path = self._index.path(inside or node, root)
        return path, min(at // self._index.geometry.step, total)

    def start(self, plan: FetchPlan, there: Sequence[Sequence[bool]], limit: int) -> FetchOp | None:
        index, geometry = self._index, self._index.geometry
        total = len(plan.tokens) // geometry.step
        path, reached = self._walk(plan.namespace, plan.tokens, total)
        here = present(geometry, path, reached, total)
        held: list[Flags] = []
        for g in range(len(geometry.groups)):
            stored = np.zeros(total, dtype=np.bool_)
            asked = plan.pages[g][: len(there[g])]
            stored[[page for page, is_there in zip(asked, there[g], strict=False) if is_there]] = True
            held.append(stored & ~here[g])
        now = int(np.flatnonzero(lengths(geometry, total, here))[-1])
        length = self._affordable(here, held, total, limit)
        if length <= now:
            return None
        length = self._with_room(path, here, held, length, now, limit)
        if length <= now:
            return None
        reads: list[tuple[int, tuple[PageKey, ...], Ids]] = []
        below = self._below(path, here, held, length, limit)
        wanted = [(g, self._needed(here, g, length)) for g in (*geometry.full, *geometry.windows)]
        for g, pages in [*wanted, *zip(geometry.windows, below, strict=True)]:
            key_of = dict(zip(plan.pages[g], plan.keys[g], strict=True))
            ids = index.pools[HOST][g].allocate(len(pages))
            for at in range(0, len(pages), BATCH):
                batch = pages[at : at + BATCH].tolist()
                reads.append((g, tuple(key_of[page] for page in batch), ids[at : at + BATCH].copy()))
        op = FetchOp(next(self._ids), plan, tuple(reads), sum(len(ids) for _, _, ids in reads))
        self._fetching[op.id] = op
        return op

    def _costs(self, here: list[Flags], total: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        """Per group and length the pages that would have to be read."""
        lengths = np.arange(total + 1)
        costs = []
        for g, group in enumerate(self._index.geometry.groups):
            before = np.zeros(total + 1, dtype=np.int64)
            np.cumsum(~here[g], out=before[1:])
            costs.append(before - before[group.firsts(lengths)])
        return costs

    def _affordable(self, here: list[Flags], held: list[Flags], total: int, limit: int) -> int:
        good = lengths(self._index.geometry, total, _either(here, held))
        costs = self._costs(here, total)
        good &= sum(costs, start=np.zeros(total + 1, dtype=np.int64)) <= limit
        for g, cost in enumerate(costs):
            good &= cost <= self._index.pools[HOST][g].available()
        return int(np.flatnonzero(good)[-1])

    def _needed(self, here: list[Flags], group: int, length: int) -> Places:
        first = self._index.geometry.groups[group].first(length)
        return np.flatnonzero(~here[group][first:length]) + first

    def _with_room(
        self, path: list[Node], here: list[Flags], held: list[Flags], length: int, now: int, limit: int
    ) -> int:
        """The length for which room was made, without taking it from the prompt's own pages."""
        total = len(here[0])
        with self._pinned(path):
            length = self._affordable(here, held, total, limit)
            while length > now:
                rooms = [self._evictor.room(HOST, g, len(self._needed(here, g, length))) for g in range(len(here))]
                if all(rooms):
                    return length
                good = lengths(self._index.geometry, total, _either(here, held))
                length = int(np.flatnonzero(good[:length])[-1])
            return now

    def _below(self, path: list[Node], here: list[Flags], held: list[Flags], length: int, limit: int) -> list[Places]:
        """What each window needs besides to serve a page less, too: a prompt that ends at `length`, to start with.

        Nothing where storage has it not, or no room is left.
        """
        geometry, pools = self._index.geometry, self._index.pools[HOST]
        needed = [self._needed(here, g, length) for g in range(len(here))]
        more = [np.setdiff1d(self._needed(here, g, length - 1), needed[g]) for g in geometry.windows]
        nothing = [pages[:0] for pages in more]
        if not lengths(geometry, length - 1, [there[: length - 1] for there in _either(here, held)])[-1]:
            return nothing
        if sum(map(len, needed)) + sum(map(len, more)) > limit:
            return nothing
        with self._pinned(path):
            rooms = [
                pools[g].available() >= len(needed[g]) + len(pages)
                and self._evictor.room(HOST, g, len(needed[g]) + len(pages))
                for g, pages in zip(geometry.windows, more, strict=True)
            ]
        return more if all(rooms) else nothing

    @contextmanager
    def _pinned(self, path: list[Node]) -> Iterator[None]:
        """A path's host pages stay meanwhile."""
        pools = self._index.pools[HOST]
        pinned = [self._host_ids(path, g) for g in range(len(pools))]
        for pool, ids in zip(pools, pinned, strict=True):
            pool.acquire(ids)
        try:
            yield
        finally:
            for pool, ids in zip(pools, pinned, strict=True):
                pool.release(ids, used=False)

    def _host_ids(self, path: list[Node], group: int) -> Ids:
        parts = [NO_IDS]
        for node in path:
            run = node.runs[group]
            if run is not None and run.host:
                ids = np.frombuffer(run.host, dtype=np.int32)
                parts.append(ids[ids >= 0])
        return np.concatenate(parts)

    def fetched(self, op: FetchOp, results: Sequence[Sequence[PageResult]]) -> int:
        """What continues the tree becomes visible, the rest is freed; answers the usable length in pages."""
        del self._fetching[op.id]
        index, geometry = self._index, self._index.geometry
        index.candidates.now += 1
        total = len(op.plan.tokens) // geometry.step
        came = self._came(op, results, total)
        path, reached = self._walk(op.plan.namespace, op.plan.tokens, total)
        came_too = _either(present(geometry, path, reached, total), [ids >= 0 for ids in came])
        good = lengths(geometry, total, came_too)
        length = int(np.flatnonzero(good)[-1])
        lower = length - 1 if length and good[length - 1] else length
        taken = self._attach(op, path, reached, [length, lower], came)
        for g, ids in enumerate(came):
            rest = ids[(ids >= 0) & ~taken[g]]
            index.pools[HOST][g].release(rest, used=False)
            self._stats.fetched += int(np.count_nonzero(taken[g]))
        index.settle()
        return length

    def _came(self, op: FetchOp, results: Sequence[Sequence[PageResult]], total: int) -> list[Ids]:
        """Per group the host ids of pages that were read, by page; those that were not are freed."""
        index = self._index
        came = [np.full(total, -1, dtype=np.int32) for _ in index.geometry.groups]
        for r, (g, keys, ids) in enumerate(op.reads):
            page_of = dict(zip(op.plan.keys[g], op.plan.pages[g], strict=True))
            answers = results[r] if r < len(results) else ()
            lost = []
            for i, key in enumerate(keys):
                answer = answers[i] if i < len(answers) else None
                if isinstance(answer, Done):
                    came[g][page_of[key]] = ids[i]
                    continue
                lost.append(i)
                if isinstance(answer, Missing):
                    self._stats.fetch_missing += 1
                elif answer is not None:
                    self._stats.fetch_failed += 1
            index.pools[HOST][g].release(ids[lost], used=False)
        return came

    def _attach(self, op: FetchOp, path: list[Node], reached: int, ends: list[int], came: list[Ids]) -> list[Flags]:
        """Put what lengths need into the tree, the longest first; answers which pages."""
        index, geometry = self._index, self._index.geometry
        taken = [np.zeros(len(ids), dtype=np.bool_) for ids in came]
        step = geometry.step
        length = ends[0]
        if length > reached:
            node = index.root(op.plan.namespace)
            if path:
                node = path[-1]
                inside = reached - node.first
                if inside < node.pages:
                    node = path[-1] = index.split(node, inside)
            at = reached * step
            while at < length * step:
                node = index.add(node, op.plan.tokens[at : min(at + index.cap * step, length * step)])
                path.append(node)
                at = node.end
        for node in path:
            for g, group in enumerate(geometry.groups):
                low = max(node.first, min(group.first(end) for end in ends))
                for page in range(low, min(node.first + node.pages, length)):
                    host = came[g][page : page + 1]
                    if host[0] < 0:
                        continue
                    at = page - node.first
                    run = node.runs[g]
                    if run is not None and run.host and run.host[4 * at : 4 * at + 4] != ABSENT:
                        continue
                    index.pools[HOST][g].stored[host] = op.id > self._since
                    index.put(HOST, node, g, at, host, entrust=True)
                    taken[g][page] = True
        if path:
            index.retained.retain(path[-1], ends)
            if not geometry.full:
                index.close_gap(path[-1])  # a length that needs no page is no reason for nodes without any
        return taken

    def copying(self, group: int) -> list[Ids]:
        """Host ids that fetches hold."""
        return [ids for op in self._fetching.values() for g, _, ids in op.reads if g == group]


def _either(some: Sequence[Flags], others: Sequence[Flags]) -> list[Flags]:
    """Of each group what one or the other has."""
    return [one | other for one, other in zip(some, others, strict=True)]
