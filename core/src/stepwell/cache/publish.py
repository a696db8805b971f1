"""Putting a request's pages into the tree: page by page it is decided who wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappush
from itertools import count

import numpy as np

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause
from stepwell.cache.index import Index
from stepwell.cache.ledger import Lease
from stepwell.cache.node import DEVICE, Node
from stepwell.cache.tiering import Tiering
from stepwell.types import DIGEST_BYTES, TOKEN_BYTES

Along = Callable[[int, int, int, Sequence[int]], Sequence[int]]
FEW = 512
"""So many nodes with an end are not worth a look whether they are still there."""


class Publisher:
    """Grows the tree by what requests computed."""

    def __init__(self, index: Index, retain: RetentionPolicy, tiering: Tiering) -> None:
        self._index = index
        self._retain = retain
        self._along = _along(retain) if index.geometry.windows else None
        self._tiering = tiering
        self._order = count()
        self.expiring: list[tuple[float, int, Node]] = []
        """A heap of nodes that may have an end, soonest first."""
        self._enough = 2 * FEW

    def publish(self, lease: Lease, tokens: bytes, digests: bytes, final: bool, expires: float | None) -> None:
        index = self._index
        step = index.geometry.step
        pages = min(len(tokens) // step, lease.pages)
        if pages > lease.published:
            index.candidates.now += 1
            self._extend(lease, tokens[: pages * step], pages, digests)
        if lease.prompt and index.geometry.windows and pages >= lease.prompt // index.geometry.page:
            self._keep_prompt(lease)
        if final and pages:
            length = min(len(tokens) // TOKEN_BYTES, (pages + 1) * index.geometry.page - 1)
            self._finish(lease, tokens[: pages * step], length, expires)

    def _extend(self, lease: Lease, tokens: bytes, pages: int, digests: bytes) -> None:
        index = self._index
        step = index.geometry.step
        start, known = lease.place, lease.published
        if start is None or start.parent is None or start.end != lease.published * step:
            # The path went, and may have come back without the device pages that the lease still has.
            start, known = index.root(lease.namespace), 0
        before = lease.published
        _, node, at, inside = index.walk(start, tokens)
        if inside is not None:
            node = index.split(inside, at // step - inside.first)
        path = index.path(node, start)
        used = self._use(lease, path, pages)
        for node in path:
            if node.first + node.pages > known:
                self._adopt(lease, node)
        made: list[Node] = []
        if at < len(tokens):
            made = self._grow(lease, node, tokens, at)
            node = made[-1]
        if digests:
            for new in made:
                new.digests = digests[new.first * DIGEST_BYTES : (new.first + new.pages) * DIGEST_BYTES]
        lease.place, lease.published, lease.counted = node, pages, pages
        if not index.geometry.full:
            index.close_gap(node)
            index.settle()
        self._tiering.consider(used, Cause.HIT)
        self._tiering.consider(made, Cause.INSERT)
        if self._along is not None:
            self._keep_along(self._along, lease, before, [start, *path, *made])

    def _keep_along(self, along: Along, lease: Lease, start: int, nodes: list[Node]) -> None:
        """Retention is asked about what was published just now, from page `start` on: the windows there go next.

        A branch at `start` itself, which nobody could tell before, is asked about with it.
        """
        page, last = self._index.geometry.page, nodes[-1]
        end = min(lease.published, last.first + last.pages)  # without full groups, what has no page left is cut off
        ends = {node.first + node.pages for node in nodes if len(node.children) > 1}
        branches = sorted(at for at in {lease.fork, *ends} if at > 0 and start <= at <= end)
        if branches and branches[0] == start:
            start -= 1
        asked = along(start * page, end * page, page, [at * page for at in branches])
        lengths = [at for at in (length // page for length in asked) if start < at <= end]
        if lengths:
            self._tiering.consider(self._index.retained.retain(last, lengths), Cause.INSERT)

    def _keep_prompt(self, lease: Lease) -> None:
        """Retention is asked about the prompt, once all of its whole pages are published."""
        index, place, length = self._index, lease.place, lease.prompt
        if place is None or place.parent is None:
            return
        lease.prompt = 0
        page = index.geometry.page
        lengths = [at // page for at in self._retain.prompted(length, page)]
        self._tiering.consider(index.retained.retain(place, lengths), Cause.INSERT)

    def _use(self, lease: Lease, path: list[Node], pages: int) -> list[Node]:
        """Count the request on nodes that it uses whole and did not make."""
        index = self._index
        used = [node for node in path if lease.counted < node.first + node.pages <= pages]
        for node in used:
            node.hits += 1
            node.last_used = index.candidates.now
            node.priority = max(node.priority, lease.priority)
            node.expires = None
        if used:
            ends = used[-1].first + used[-1].pages
            index.candidates.use(used[-1], [group.first(ends) for group in index.geometry.groups])
        return used

    def _adopt(self, lease: Lease, node: Node) -> None:
        """Where the tree has a page of a node already the lease takes it, elsewhere the tree takes the lease's."""
        index = self._index
        for g, group in enumerate(index.geometry.groups):
            low = max(node.first, lease.trimmed[g])
            high = min(node.first + node.pages, lease.pages)
            if low >= high:
                continue
            run = node.runs[g]
            mine = lease.tables[g][low:high]
            theirs = np.full(high - low, -1, dtype=np.int32)
            if run is not None:
                theirs = run.ids(DEVICE, node.pages)[low - node.first : high - node.first]
            other = (theirs >= 0) & (mine >= 0) & (theirs != mine)
            if other.any():
                self.take(lease, g, low, np.where(other, theirs, -1).astype(np.int32))
            new = np.flatnonzero((theirs < 0) & (mine >= 0))
            if not len(new):
                continue
            if group.full and low + int(new[0]) - node.first != len(node.run(g).device) // 4:
                continue
            for piece in np.split(new, np.flatnonzero(np.diff(new) > 1) + 1):
                first = int(piece[0])
                index.put(DEVICE, node, g, low - node.first + first, mine[first : first + len(piece)].copy())

    def take(
        self, lease: Lease, group: int, first: int, theirs: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    ) -> None:
        """From page `first` on, the lease takes the tree's pages where they are not -1, and lets its own go."""
        pool = self._index.pools[DEVICE][group]
        table = lease.tables[group][first : first + len(theirs)]
        chosen = theirs >= 0
        pool.acquire(theirs[chosen])
        mine = table[chosen]
        pool.release(mine[mine >= 0])
        table[chosen] = theirs[chosen]
        for piece in np.split(np.flatnonzero(chosen), np.flatnonzero(np.diff(np.flatnonzero(chosen)) > 1) + 1):
            low = int(piece[0])
            lease.edits.append((group, first + low, theirs[low : low + len(piece)].copy()))

    def _grow(self, lease: Lease, node: Node, tokens: bytes, at: int) -> list[Node]:
        """Add nodes for what the tree does not know; a leaf that this request alone made grows in place."""
        index = self._index
        step = index.geometry.step
        made: list[Node] = []
        room = index.cap - node.pages
        if node.parent is not None and not node.children and not node.hits and room > 0:
            more = tokens[at : at + room * step]
            index.lengthen(node, more)
            made.append(node)
            at += len(more)
            self._plant(lease, node, node.pages - len(more) // step)
        while at < len(tokens):
            node = index.add(node, tokens[at : at + index.cap * step])
            node.priority = lease.priority
            made.append(node)
            at = node.end
            self._plant(lease, node, 0)
        return made

    def _plant(self, lease: Lease, node: Node, at: int) -> None:
        index = self._index
        for g in range(len(index.geometry.groups)):
            low = max(node.first + at, lease.trimmed[g])
            ids = lease.tables[g][low : node.first + node.pages]
            if len(ids):
                index.put(DEVICE, node, g, low - node.first, ids)

    def _finish(self, lease: Lease, tokens: bytes, length: int, expires: float | None) -> None:
        """Retention applies, and pages that this request alone made expire when it says.

        `length`: where the request ended, less than a page behind `tokens`.
        """
        index = self._index
        geometry = index.geometry
        root = index.root(lease.namespace)
        _, last, at, inside = index.walk(root, tokens)
        if inside is not None or at < len(tokens):
            return
        path = index.path(last, root)
        if expires is not None:
            for node in path:
                if not node.hits:
                    node.expires = expires
                    heappush(self.expiring, (expires, next(self._order), node))
            self._forget_gone()
        if not geometry.windows:
            return
        branches = [node.end // TOKEN_BYTES for node in path if len(node.children) > 1]
        asked = self._retain.keep(length, geometry.page, branches)
        self._tiering.consider(index.retained.retain(last, [at // geometry.page for at in asked]), Cause.INSERT)

    def _forget_gone(self) -> None:
        """Nodes that left the tree before their end came, or have another by now, are not remembered for long."""
        if len(self.expiring) < self._enough:
            return
        self.expiring[:] = [
            (until, order, node)
            for until, order, node in self.expiring
            if node.parent is not None and node.expires == until
        ]
        heapify(self.expiring)
        self._enough = 2 * max(FEW, len(self.expiring))


def _along(retain: RetentionPolicy) -> Along | None:
    """What a policy answers while requests run; None where it has no answer of its own, and nobody need ask."""
    along = retain.along
    return None if getattr(along, "__func__", None) is RetentionPolicy.along else along
