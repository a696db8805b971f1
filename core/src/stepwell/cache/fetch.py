"""From storage to host: what to ask for, which pages to read, and what of them becomes visible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from stepwell.cache.evict import Evictor
from stepwell.cache.index import Index
from stepwell.cache.keys import page_digests, page_keys
from stepwell.cache.ledger import CacheStats, FetchOp, FetchPlan
from stepwell.cache.match import Flags, flags, longest, usable
from stepwell.cache.node import ABSENT, HOST, Node
from stepwell.cache.pool import NO_IDS
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

    def plan(self, namespace: bytes, tokens: bytes, digests: bytes) -> FetchPlan | None:
        geometry = self._index.geometry
        total = max(0, len(tokens) - TOKEN_BYTES) // geometry.step
        path, reached = self._walk(namespace, tokens, total)
        now = longest(geometry, reached, [(g, flags(path, g, reached, on_host=True)) for g in geometry.windows])
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

    def start(self, plan: FetchPlan, present: Sequence[Sequence[bool]], limit: int) -> FetchOp | None:
        index, geometry = self._index, self._index.geometry
        total = len(plan.tokens) // geometry.step
        path, reached = self._walk(plan.namespace, plan.tokens, total)
        here = self._here(path, reached, total)
        held: list[Flags] = []
        for g in range(len(geometry.groups)):
            stored = np.zeros(total, dtype=np.bool_)
            asked = plan.pages[g][: len(present[g])]
            stored[[page for page, is_there in zip(asked, present[g], strict=False) if is_there]] = True
            held.append(stored & ~here[g])
        now = self._best(here, total)
        length = self._affordable(here, held, total, limit)
        if length <= now:
            return None
        length = self._with_room(path, here, held, length, now, limit)
        if length <= now:
            return None
        reads: list[tuple[int, tuple[PageKey, ...], Ids]] = []
        for g in (*geometry.full, *geometry.windows):
            pages = self._needed(here, g, length)
            key_of = dict(zip(plan.pages[g], plan.keys[g], strict=True))
            ids = index.pools[HOST][g].allocate(len(pages))
            for at in range(0, len(pages), BATCH):
                batch = pages[at : at + BATCH].tolist()
                reads.append((g, tuple(key_of[page] for page in batch), ids[at : at + BATCH].copy()))
        op = FetchOp(next(self._ids), plan, tuple(reads), sum(len(ids) for _, _, ids in reads))
        self._fetching[op.id] = op
        return op

    def _here(self, path: list[Node], reached: int, total: int) -> list[Flags]:
        """Per group which pages the tree has on any tier."""
        here = []
        for g, group in enumerate(self._index.geometry.groups):
            there = np.zeros(total, dtype=np.bool_)
            known = b"\x01" * reached if group.full else flags(path, g, reached, on_host=True)
            there[:reached] = np.frombuffer(known, dtype=np.bool_)
            here.append(there)
        return here

    def _good(self, there: list[Flags], total: int) -> Flags:
        """Which lengths are usable given which pages are there."""
        geometry = self._index.geometry
        good = usable(geometry, total, [(g, there[g].tobytes()) for g in geometry.windows])
        for g in geometry.full:
            absent = np.flatnonzero(~there[g])
            if len(absent):
                good[int(absent[0]) + 1 :] = False
        return good

    def _best(self, there: list[Flags], total: int) -> int:
        return int(np.flatnonzero(self._good(there, total))[-1])

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
        good = self._good([have | stored for have, stored in zip(here, held, strict=True)], total)
        costs = self._costs(here, total)
        good &= sum(costs, start=np.zeros(total + 1, dtype=np.int64)) <= limit
        for g, cost in enumerate(costs):
            good &= cost <= self._index.pools[HOST][g].available()
        return int(np.flatnonzero(good)[-1])

    def _needed(self, here: list[Flags], group: int, length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
        first = self._index.geometry.groups[group].first(length)
        return np.flatnonzero(~here[group][first:length]) + first

    def _with_room(
        self, path: list[Node], here: list[Flags], held: list[Flags], length: int, now: int, limit: int
    ) -> int:
        """The length for which room was made, without taking it from the prompt's own pages."""
        index = self._index
        pinned = [self._host_ids(path, g) for g in range(len(here))]
        for g, ids in enumerate(pinned):
            index.pools[HOST][g].acquire(ids)
        try:
            length = self._affordable(here, held, len(here[0]), limit)
            while length > now:
                rooms = [self._evictor.room(HOST, g, len(self._needed(here, g, length))) for g in range(len(here))]
                if all(rooms):
                    return length
                length -= 1
                length = int(
                    np.flatnonzero(
                        self._good([a | b for a, b in zip(here, held, strict=True)], len(here[0]))[: length + 1]
                    )[-1]
                )
            return now
        finally:
            for g, ids in enumerate(pinned):
                index.pools[HOST][g].release(ids, used=False)

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
        here = self._here(path, reached, total)
        length = self._best([have | (ids >= 0) for have, ids in zip(here, came, strict=True)], total)
        taken = self._attach(op, path, reached, length, came)
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

    def _attach(self, op: FetchOp, path: list[Node], reached: int, length: int, came: list[Ids]) -> list[Flags]:
        """Put pages up to `length` into the tree; answers which."""
        index, geometry = self._index, self._index.geometry
        taken = [np.zeros(len(ids), dtype=np.bool_) for ids in came]
        step = geometry.step
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
                low = max(node.first, 0 if group.full else group.first(length))
                high = min(node.first + node.pages, length)
                for page in range(low, high):
                    host = came[g][page : page + 1]
                    if host[0] < 0:
                        continue
                    at = page - node.first
                    run = node.runs[g]
                    if run is not None and run.host and run.host[4 * at : 4 * at + 4] != ABSENT:
                        continue
                    index.pools[HOST][g].stored[host] = True
                    index.put(HOST, node, g, at, host, entrust=True)
                    taken[g][page] = True
                if not group.full and low < high:
                    index.keep(node, g, low - node.first, high - node.first)
        return taken

    def copying(self, group: int) -> list[Ids]:
        """Host ids that fetches hold."""
        return [ids for op in self._fetching.values() for g, _, ids in op.reads if g == group]
