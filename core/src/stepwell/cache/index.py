"""The radix tree: which pages hold which tokens, in which tier, for which group.

Presence is per page and group. Of a full group every page up to the end of a node is on device or host, and those on
device come first; so a match reads leading ids and nothing else. Splits and cuts change no answer for what stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepwell.abc.evict import EvictionPolicy
from stepwell.cache.candidates import Candidates
from stepwell.cache.follow import Follower
from stepwell.cache.groups import Geometry
from stepwell.cache.node import ABSENT, DEVICE, HOST, NOTHING, TIERS, Node, Places, Run, Seg, any_of, count, some
from stepwell.cache.pool import Pool
from stepwell.cache.retained import Retained
from stepwell.types import DIGEST_BYTES, Ids

EDGE_TOKENS = 4096
"""Longest edge: bounds what a split, a cut or an append costs."""

Watcher = Callable[[bool, int, int, Node, Sequence[int]], None]
"""Told of (added, tier, group, node, page numbers within the node)."""


class Index:
    """One tree a namespace over shared pools. Policies are told of changes when `settle` is called."""

    def __init__(
        self,
        geometry: Geometry,
        pools: tuple[tuple[Pool, ...], tuple[Pool, ...]],
        policies: tuple[tuple[EvictionPolicy, ...], tuple[EvictionPolicy, ...]],
    ) -> None:
        self.geometry = geometry
        self.pools = pools
        """By tier and group."""
        self.candidates = Candidates(geometry, policies, [any(pool.total for pool in pools[tier]) for tier in TIERS])
        self.retained = Retained(geometry, self.candidates)
        self.roots: dict[bytes, Node] = {}
        self.version = 0
        self.watch: Watcher | None = None
        self.follower = Follower()
        self.cap = max(1, EDGE_TOKENS // geometry.page)
        self.step = geometry.step
        self._lead = geometry.full[0] if geometry.full else -1
        self._leaving: list[list[tuple[Seg, bytes]]] = [[] for _ in geometry.groups]
        """Device pages that go at the next `settle`, many at once."""

    # region: walking

    def root(self, namespace: bytes) -> Node:
        """The root of a namespace; made where there is none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(None, b"", 0, 0, len(self.geometry.groups), 0)
            root.digests = namespace
            for group in self.geometry.full:
                root.run(group)
        return root

    def walk(self, start: Node, tokens: bytes) -> tuple[list[bytes], Node, int, Node | None]:
        """Follow `tokens` below `start`.

        Answers the leading ids passed, the last node that matched whole, the bytes reached in whole pages, and the node
        that was left inside, if any; its ids are then the last.
        """
        leads: list[bytes] = []
        append = leads.append
        startswith = tokens.startswith
        step = self.step
        node, at = start, start.end
        while True:
            child = node.hot
            while startswith(child.edge, at):
                append(child.lead)
                at = child.end
                node = child
                child = child.hot
            known = node.children.get(tokens[at : at + step]) if node.children else None
            if known is None:
                return leads, node, at, None
            node.hot = known
            append(known.lead)
            if not startswith(known.edge, at):
                return leads, node, at + self._shared(known.edge, tokens, at), known
            node, at = known, known.end

    def _shared(self, edge: bytes, tokens: bytes, at: int) -> int:
        """Bytes of whole pages of an edge with which `tokens` go on at `at`; the first page does."""
        step = self.step
        low, high = 1, len(edge) // step
        while high - low > 1:
            middle = (low + high) // 2
            if tokens.startswith(edge[: middle * step], at):
                low = middle
            else:
                high = middle
        return low * step

    @staticmethod
    def path(node: Node, start: Node) -> list[Node]:
        """The nodes below `start` down to `node`."""
        nodes = []
        while node is not start:
            nodes.append(node)
            assert node.parent is not None
            node = node.parent
        nodes.reverse()
        return nodes

    # endregion

    # region: the shape of the tree

    def add(self, parent: Node, edge: bytes) -> Node:
        """A new child without pages."""
        pages = len(edge) // self.step
        node = Node(parent, edge, parent.first + parent.pages, pages, len(self.geometry.groups), self.candidates.now)
        for group in self.geometry.full:
            node.runs[group] = Run(node, group)
        parent.children[edge[: self.step]] = node
        parent.hot = node
        self.follower.grew(parent, edge)
        return node

    def lengthen(self, node: Node, more: bytes) -> None:
        """Add tokens to a leaf."""
        self.follower.grew(node, more)
        grown = len(more) // self.step
        node.edge += more
        node.end += len(more)
        node.pages += grown
        for group, run in enumerate(node.runs):
            if run is None:
                continue
            gap = ABSENT * grown
            if run.host:
                run.host += gap
            if not self.geometry.groups[group].full:
                if run.device:
                    run.device += gap
                if run.kept:
                    run.kept += bytes(grown)
                whole = b"\x01" * (node.pages - grown)
                run.mask = (run.mask or whole) + bytes(grown)
                run.local = (run.local or whole) + bytes(grown)

    def split(self, node: Node, pages: int) -> Node:
        """Cut a node in two; `node` keeps the tail, the answer is a new node above it with the first `pages` pages."""
        parent = node.parent
        assert parent is not None and 0 < pages < node.pages
        cut = pages * self.step
        upper = Node(parent, node.edge[:cut], node.first, pages, len(node.runs), node.started)
        upper.hits, upper.last_used, upper.priority = node.hits, node.last_used, node.priority
        upper.expires, upper.wanted = node.expires, node.wanted
        upper.digests = node.digests[: pages * DIGEST_BYTES]
        parent.children[node.edge[: self.step]] = upper
        if parent.hot is node:
            parent.hot = upper
        node.digests = node.digests[pages * DIGEST_BYTES :]
        node.edge = node.edge[cut:]
        node.first += pages
        node.pages -= pages
        node.parent = upper
        upper.children[node.edge[: self.step]] = node
        upper.hot = node
        for group, run in enumerate(node.runs):
            if run is not None:
                self._split_run(upper, node, group, run)
        upper.bare = self._bare(upper)
        self.follower.split(upper, node)
        self.settle()
        return upper

    def _split_run(self, upper: Node, node: Node, group: int, run: Run) -> None:
        full = self.geometry.groups[group].full
        head = upper.run(group)
        cut = 4 * upper.pages
        head.device, run.device = run.device[:cut], run.device[cut:]
        head.host, run.host = some(run.host[:cut]), some(run.host[cut:])
        if full:
            if group == self._lead:
                upper.lead, node.lead = head.device, run.device
        else:
            self.retained.split(upper, head, node, run, group)
        for tier in TIERS:
            lower, above = run.segments[tier], head.segments[tier]
            had = lower.pages
            lower.pages = count(run.host if tier else run.device)
            above.pages = had - lower.pages
            if full:
                head.below[tier] = int(lower.pages > 0)
                if had and not above.pages and upper.parent is not None:
                    self._uncover(upper.parent, group, tier)
            if above.pages and lower.pages:
                self.candidates.policies[tier][group].on_split(above, lower)
                if not full:
                    self.candidates.announce(above, oldest=True)
            elif above.pages:
                # The policy knows the segment by its identity: it moves up with its pages.
                self._swap(head, run, tier)
        if not full:
            self._refresh(upper, group)
            self._refresh(node, group)

    def _swap(self, head: Run, run: Run, tier: int) -> None:
        mine, theirs = list(head.segments), list(run.segments)
        mine[tier], theirs[tier] = theirs[tier], mine[tier]
        mine[tier].node, theirs[tier].node = theirs[tier].node, mine[tier].node
        mine[tier].pages, theirs[tier].pages = theirs[tier].pages, mine[tier].pages
        head.segments, run.segments = (mine[0], mine[1]), (theirs[0], theirs[1])

    def drop_from(self, node: Node, page: int) -> None:
        """Forget the pages of a node from `page` on, and all that lies behind them, in every tier and group."""
        for child in list(node.children.values()):
            self.remove(child)
        if page == 0:
            self.remove(node)
            return
        for group, run in enumerate(node.runs):
            if run is None:
                continue
            for tier in TIERS:
                there = np.flatnonzero(run.ids(tier, node.pages)[page:] >= 0) + page
                if len(there):
                    self.cut(tier, node, group, there)
        gone = node.pages - page
        node.pages = page
        node.edge = node.edge[: page * self.step]
        node.end -= gone * self.step
        node.digests = node.digests[: page * DIGEST_BYTES]
        self.follower.shrank(node)
        for group, run in enumerate(node.runs):
            if run is None:
                continue
            run.host = some(run.host[: 4 * page])
            if not self.geometry.groups[group].full:
                run.device = run.device[: 4 * page]
                run.kept = any_of(run.kept[:page])
                self._refresh(node, group)

    def remove(self, node: Node) -> None:
        """Take a node and all below it out of the tree."""
        parent = node.parent
        assert parent is not None
        for group in self.geometry.full:
            for tier in TIERS:
                if node.run(group).segments[tier].pages:
                    self._uncover(parent, group, tier)
        for group in self.geometry.windows:
            run = node.runs[group]
            if run is not None and run.reach < node.first:
                self.retained.ease(parent, group)
        del parent.children[node.edge[: self.step]]
        if parent.hot is node:
            parent.hot = NOTHING
        stack = [node]
        while stack:
            gone = stack.pop()
            stack.extend(gone.children.values())
            for group, run in enumerate(gone.runs):
                if run is not None:
                    self._clear(gone, group, run)
        stack = [node]
        while stack:
            gone = stack.pop()
            stack.extend(gone.children.values())
            self.follower.gone(gone)
            gone.parent = None
        self.version += 1
        if parent.parent is None and not parent.children and self.roots.get(parent.digests) is parent:
            del self.roots[parent.digests]

    def bury(self, node: Node) -> None:
        """`remove` for a leaf without host pages; `settle` gives back its pages and tells policies, many at once."""
        parent = node.parent
        assert parent is not None
        for group, run in enumerate(node.runs):
            if run is not None and run.device:
                self._leave(node, group, run)
        del parent.children[node.edge[: self.step]]
        if parent.hot is node:
            parent.hot = NOTHING
        self.follower.gone(node)
        node.parent = None
        if parent.parent is None and not parent.children and self.roots.get(parent.digests) is parent:
            del self.roots[parent.digests]

    def lift(self, node: Node, group: int) -> None:
        """All pages that a node has of a full group on device go; host has them. They are given back by `settle`."""
        run = node.runs[group]
        assert run is not None
        self._leave(node, group, run)
        run.device = b""
        if group == self._lead:
            node.lead = b""

    def _leave(self, node: Node, group: int, run: Run) -> None:
        segment = run.segments[DEVICE]
        self._leaving[group].append((segment, run.device))
        segment.pages = 0
        if node.parent is None:
            return
        if self.geometry.groups[group].full:
            self._uncover(node.parent, group, DEVICE)
        elif run.reach < node.first:
            self.retained.ease(node.parent, group)

    def _give_back(self) -> None:
        for group, leaving in enumerate(self._leaving):
            if not leaving:
                continue
            self._leaving[group] = []
            ids: Ids = np.frombuffer(b"".join([device for _, device in leaving]), dtype=np.int32)
            full = self.geometry.groups[group].full
            self.pools[DEVICE][group].uproot(ids if full else ids[ids >= 0])
            self.version += 1
            self.candidates.forget(DEVICE, group, [segment for segment, _ in leaving])

    def _clear(self, node: Node, group: int, run: Run) -> None:
        for tier in TIERS:
            segment = run.segments[tier]
            if segment.pages:
                ids = run.ids(tier, node.pages)
                there = np.flatnonzero(ids >= 0)
                if self.watch is not None:
                    self.watch(False, tier, group, node, there.tolist())
                self.pools[tier][group].uproot(ids[there])
                segment.pages = 0
                self.candidates.withdraw(segment)
        node.runs[group] = Run(node, group) if self.geometry.groups[group].full else None
        node.lead = b""

    # endregion

    # region: pages

    def put(self, tier: int, node: Node, group: int, at: int, ids: Ids, *, entrust: bool = False) -> None:
        """Pages [at, at + len(ids)) of a node are `ids` in a tier, where there was none.

        `entrust`: the caller's hold becomes the tree's.
        """
        if not len(ids):
            return
        pool = self.pools[tier][group]
        if entrust:
            pool.entrust(ids)
        else:
            pool.plant(ids)
        self.version += 1
        run = node.run(group)
        segment = run.segments[tier]
        was = segment.pages
        segment.pages = was + len(ids)
        full = self.geometry.groups[group].full
        if full and tier == DEVICE:
            run.device += ids.tobytes()
            if group == self._lead:
                node.lead = run.device
        elif len(ids) == node.pages:
            self._store(run, tier, ids.tobytes())
        else:
            known = (run.host if tier else run.device) or ABSENT * node.pages
            self._store(run, tier, known[: 4 * at] + ids.tobytes() + known[4 * (at + len(ids)) :])
        if full:
            parent = node.parent
            if not was and parent is not None:
                parent.run(group).below[tier] += 1
            if not run.below[tier]:
                self.candidates.place(segment, renewed=was > 0)
        else:
            self._refresh(node, group)
            self.candidates.announce(segment)
            self.follower.came(node)
        if self.watch is not None:
            self.watch(True, tier, group, node, range(at, at + len(ids)))

    @staticmethod
    def _store(run: Run, tier: int, ids: bytes) -> None:
        if tier == HOST:
            run.host = ids
        else:
            run.device = ids

    def cut(self, tier: int, node: Node, group: int, at: Places) -> int:
        """Forget pages of a node in a tier; of a full group on device, its last ones. Answers how many are free now."""
        run = node.runs[group]
        assert run is not None
        if self.watch is not None:
            self.watch(False, tier, group, node, at.tolist())
        segment, full = run.segments[tier], self.geometry.groups[group].full
        segment.pages -= len(at)
        if full and tier == DEVICE:
            cut = len(run.device) - 4 * len(at)
            gone: Ids = np.frombuffer(run.device, dtype=np.int32, offset=cut)
            run.device = run.device[:cut]
            if group == self._lead:
                node.lead = run.device
        else:
            ids = run.ids(tier, node.pages)
            gone = ids[at]
            ids[at] = -1
            self._store(run, tier, ids.tobytes() if segment.pages else b"")
        self.version += 1
        freed = self.pools[tier][group].uproot(gone)
        if not segment.pages:
            self.candidates.withdraw(segment)
            if full and node.parent is not None:
                self._uncover(node.parent, group, tier)
        if not full:
            if run.kept:
                self.retained.lost(node, group, at[run.ids(1 - tier, node.pages)[at] < 0])
            self._refresh(node, group)
            self.follower.went(node, at)
        return freed

    def close_gap(self, node: Node) -> None:
        """Forget what lies behind the first page of a node that a full group has in no tier.

        Without full groups a node lives as long as it has a page or a child, and so may its parent go with it.
        """
        here: Node | None = node
        while here is not None and here.parent is not None:
            above = here.parent
            end = self._reach(here)
            if end < here.pages:
                self.drop_from(here, end)
            here = above if end == 0 and not self.geometry.full else None

    def _reach(self, node: Node) -> int:
        if not self.geometry.full:
            return self._last_present(node)
        end = node.pages
        for group in self.geometry.full:
            run = node.run(group)
            on_device = len(run.device) // 4
            if on_device >= end or run.segments[HOST].pages == node.pages:
                continue
            if not run.host:
                end = on_device
                continue
            holes = np.flatnonzero(np.frombuffer(run.host, dtype=np.int32)[on_device:end] < 0)
            if len(holes):
                end = on_device + int(holes[0])
        return end

    def _last_present(self, node: Node) -> int:
        if node.children:
            return node.pages
        last = 0
        for run in node.runs:
            if run is not None:
                last = max(last, node.pages if run.mask is None else run.mask.rfind(1) + 1)
        return last

    def _refresh(self, node: Node, group: int) -> None:
        """Work out what a window's run says of its pages; one without any is a tombstone."""
        run = node.runs[group]
        assert run is not None
        if len(run.device) == 4 * node.pages and ABSENT not in run.device:
            run.mask = run.local = None
            return
        on_device = run.ids(DEVICE, node.pages) >= 0
        present = on_device
        run.local = on_device.tobytes()
        if run.host:
            present = on_device | (run.ids(HOST, node.pages) >= 0)
        if present.all():
            run.mask = None
        elif present.any():
            run.mask = present.tobytes() if run.host else run.local
        else:
            node.runs[group] = None
            node.bare = self._bare(node)

    def _bare(self, node: Node) -> bool:
        return all(node.runs[group] is None for group in self.geometry.windows)

    # endregion

    # region: what policies hear

    def _uncover(self, parent: Node, group: int, tier: int) -> None:
        run = parent.runs[group]
        assert run is not None
        run.below[tier] -= 1
        if not run.below[tier] and run.segments[tier].pages:
            self.candidates.expose(run.segments[tier])

    def settle(self) -> None:
        """Give back what leaves, and tell policies what happened."""
        self.retained.settle()
        self.candidates.settle()
        self._give_back()

    # endregion
