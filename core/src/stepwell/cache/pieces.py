"""Pages on the move between tiers: what an operation in flight remembers, and where in the tree it is now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepwell.cache.index import Index
from stepwell.cache.node import Node, Places, Run
from stepwell.cache.pool import Flags
from stepwell.types import Ids

NOWHERE: Places = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive pages of a node on the move; page numbers count from the root."""

    node: Node
    first: int
    upper: Ids
    lower: Ids
    before: bytes = b""
    """Digest of the page before the first, where events need it."""


def spans(node: Node, first: int, pages: int) -> list[tuple[Node | None, int, int]]:
    """Where `pages` pages, from page `first` on, are now that were in `node`: (node, low, high) of each part.

    Low and high count from `first`; no node: they left the tree.
    """
    parts: list[tuple[Node | None, int, int]] = []
    end = first + pages
    here: Node | None = node
    while end > first:
        if here is None or here.parent is None:
            parts.append((None, 0, end - first))
            break
        reach = here.first + here.pages
        if reach < end:
            parts.append((None, max(reach, first) - first, end - first))
            end = max(reach, first)
        low = max(here.first, first)
        if low < end:
            parts.append((here, low - first, end - first))
            end = low
        here = here.parent
    parts.reverse()
    return parts


def kept(index: Index, run: Run, group: int) -> Flags:
    """Which pages of a run are worth a copy: of windows, those that a retained length needs."""
    if index.geometry.groups[group].full:
        return np.ones(1, dtype=np.bool_)
    return np.frombuffer(run.kept or b"\0", dtype=np.bool_)


def stretches(flags: Flags) -> Iterable[tuple[int, int]]:
    """(low, high) of each stretch of set flags."""
    places = np.flatnonzero(flags)
    return ((int(places[low]), int(places[high - 1]) + 1) for low, high in runs_of(places))


def runs_of(places: Places | Ids) -> Iterable[tuple[int, int]]:
    """(low, high) into `places` of each stretch of consecutive numbers."""
    if not len(places):
        return ()
    cuts = np.flatnonzero(np.diff(places) > 1) + 1
    return pairwise([0, *cuts.tolist(), len(places)])
