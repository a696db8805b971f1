"""Retained lengths: where windows end that retention asked for, and which pages they need.

A length lies in the node of its last page. Its window may reach into nodes above, of each of which it then needs a
tail; so all that the lengths below a node need of it is one number, the lowest page.

    pages     0 . . . 4 . . . 8 . . . 12            window of 4 pages
    above   [ . . . . . . k k ]                     kept for the lengths below: from page 6 on
    node                      [ k k . k k k k ]     ends at 10 (reaches back to 6) and at 15
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

import numpy as np

from stepwell.cache.candidates import Candidates
from stepwell.cache.groups import Geometry
from stepwell.cache.node import NO_PAGE, TIERS, Node, Places, Run, any_of


class Retained:
    """Keeps and gives up retained lengths; a page is kept as long as one of them needs it."""

    def __init__(self, geometry: Geometry, candidates: Candidates) -> None:
        self._geometry = geometry
        self._candidates = candidates
        self._eased: dict[tuple[Node, int], None] = {}
        """Nodes that less may be needed of, and of which group; until `settle` their marks are more than they must."""

    # region: a length more

    def retain(self, last: Node, lengths: Iterable[int]) -> dict[Node, None]:
        """Keep the windows at lengths (in pages) on the way to a node, where they are whole; answers of which nodes."""
        touched: dict[Node, None] = {}
        node = last
        for length in sorted(set(lengths), reverse=True):
            while node.first >= length and node.parent is not None:
                node = node.parent
            for group in self._geometry.windows:
                self._keep(node, group, length, touched)
        return touched

    def _keep(self, node: Node, group: int, length: int, touched: dict[Node, None]) -> None:
        low = self._geometry.groups[group].first(length)
        run = node.runs[group]
        if low >= length or run is None or length in run.ends or not _whole(node, group, low, length):
            return
        ends = list(run.ends)
        insort(ends, length)
        run.ends = tuple(ends)
        self._mark(node, run, low, length)
        touched[node] = None
        while low < node.first:
            assert node.parent is not None
            node = node.parent
            run = node.run(group)
            run.deep = min(run.deep, low)
            self._mark(node, run, low, node.first + node.pages)
            touched[node] = None

    def _mark(self, node: Node, run: Run, low: int, high: int) -> None:
        """Pages [low, high) of a prompt are needed, as far as they are a node's."""
        fresh = not run.kept
        kept = bytearray(run.kept or bytes(node.pages))
        start = max(low - node.first, 0)
        kept[start : high - node.first] = b"\x01" * (high - node.first - start)
        run.kept = bytes(kept)
        run.reach = min(run.reach, low)
        for tier in TIERS:
            segment = run.segments[tier]
            if segment.pages:
                self._candidates.keep(segment, fresh)

    # endregion

    # region: a length less

    def lost(self, node: Node, group: int, places: Places) -> None:
        """Pages of a node are in no tier any more: the lengths whose windows they were in go, and no others."""
        run = node.runs[group]
        if run is None or not run.kept:
            return
        places = places[np.frombuffer(run.kept, dtype=np.bool_)[places]]
        if not len(places):
            return
        gone = places + node.first
        first = self._geometry.groups[group].first
        if run.ends:
            lowest = gone.searchsorted([first(end) for end in run.ends])
            above = np.append(gone, NO_PAGE)[lowest]
            run.ends = tuple(end for end, page in zip(run.ends, above.tolist(), strict=True) if page >= end)
        last = int(gone[-1])
        if run.deep <= last:
            self._lose_below(node, group, last)
            run.deep = self._deepest(node, group, run.deep)
        self._renew(node, group, run)
        self.settle()

    def _lose_below(self, node: Node, group: int, page: int) -> None:
        """Of all lengths below a node those go whose windows reach back to a page of it."""
        first = self._geometry.groups[group].first
        stack = list(node.children.values())
        hit: list[tuple[Node, Run]] = []
        while stack:
            here = stack.pop()
            run = here.runs[group]
            if run is not None and run.reach <= page:
                hit.append((here, run))
                if run.deep <= page:
                    stack.extend(here.children.values())
        for here, run in reversed(hit):
            run.ends = tuple(end for end in run.ends if first(end) > page)
            run.deep = self._deepest(here, group, run.deep)
            self._renew(here, group, run)

    def ease(self, node: Node, group: int) -> None:
        """A child is gone, or needs less of a node; `settle` sees to it."""
        self._eased[node, group] = None

    def settle(self) -> None:
        """Work out again what is needed of nodes that lengths below them let go of."""
        while self._eased:
            (node, group), _ = self._eased.popitem()
            run = node.runs[group]
            if node.parent is None or run is None:
                continue
            deep = self._deepest(node, group, run.deep)
            if deep != run.deep:
                run.deep = deep
                self._renew(node, group, run)

    @staticmethod
    def _deepest(node: Node, group: int, bound: int) -> int:
        """The lowest page that lengths below need of a node. None is below `bound`, so one that reaches it ends it."""
        deep = NO_PAGE
        for child in node.children.values():
            run = child.runs[group]
            if run is not None and run.reach < child.first and run.reach < deep:
                deep = run.reach
                if deep <= bound:
                    break
        return deep

    def _renew(self, node: Node, group: int, run: Run) -> None:
        """Marks, after lengths went."""
        first = self._geometry.groups[group].first
        was, reach = run.kept, run.reach
        run.kept = marks(node, run, [first(end) for end in run.ends])
        run.reach = min(first(run.ends[0]), run.deep) if run.ends else run.deep
        if reach < node.first and run.reach != reach and node.parent is not None:
            self.ease(node.parent, group)
        if run.kept != was:
            for segment in run.segments:
                if segment.pages:
                    self._candidates.forsake(segment)

    # endregion

    def split(self, upper: Node, head: Run, node: Node, run: Run, group: int) -> None:
        """`head` has the pages of a run that are in `upper` now; `run` keeps those in `node`."""
        first = self._geometry.groups[group].first
        head.kept, run.kept = any_of(run.kept[: upper.pages]), any_of(run.kept[upper.pages :])
        head.ends = tuple(end for end in run.ends if end <= node.first)
        run.ends = run.ends[len(head.ends) :]
        run.reach = min(first(run.ends[0]), run.deep) if run.ends else run.deep
        head.deep = run.reach if run.reach < node.first else NO_PAGE
        head.reach = min(first(head.ends[0]), head.deep) if head.ends else head.deep


def marks(node: Node, run: Run, firsts: Iterable[int]) -> bytes:
    """A byte a page, whether a retained length needs it; `firsts`: where the windows of the node's own ones begin."""
    end = node.first + node.pages
    kept = bytearray(node.pages)
    for low, high in [*zip(firsts, run.ends, strict=True), (min(run.deep, end), end)]:
        start = max(low - node.first, 0)
        kept[start : high - node.first] = b"\x01" * (high - node.first - start)
    return any_of(bytes(kept))


def _whole(node: Node, group: int, low: int, high: int) -> bool:
    """Whether pages [low, high) on the way to a node are all there, on any tier."""
    here: Node | None = node
    while high > low and here is not None:
        run = here.runs[group]
        if run is None:
            return False
        if run.mask is not None and 0 in run.mask[max(low - here.first, 0) : high - here.first]:
            return False
        high = here.first
        here = here.parent
    return True
