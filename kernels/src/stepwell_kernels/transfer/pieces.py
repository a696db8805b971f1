"""Copies as lists of addresses, for copy engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell_kernels.transfer.layout import Layout
from stepwell_kernels.transfer.mover import Way


@dataclass(frozen=True, slots=True)
class Copies:
    """From where to where, and how many bytes; all uint64."""

    target: NDArray[np.uint64]
    source: NDArray[np.uint64]
    sizes: NDArray[np.uint64]

    def merged(self) -> Copies:
        """Those that go on where the one before ends, on both sides, as one."""
        goes_on = (self.target[:-1] + self.sizes[:-1] == self.target[1:]) & (
            self.source[:-1] + self.sizes[:-1] == self.source[1:]
        )
        if not goes_on.any():
            return self
        begins = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        return Copies(self.target[begins], self.source[begins], np.add.reduceat(self.sizes, begins))


def pieces(way: Way, at: Layout, first: int, layers: int, pages: NDArray[np.int32], slots: NDArray[np.int32]) -> Copies:
    """A copy a piece, side by side and layer by layer, so that neighbours in both places follow one another."""
    if at.parts > 1:
        return _rows(way, at, first, layers, pages, slots)
    rows = np.arange(first, first + layers, dtype=np.uint64)[:, None]
    own = pages.astype(np.uint64)[None]
    in_arena = np.uint64(at.host) + slots.astype(np.uint64)[None] * np.uint64(at.slot)
    mine, theirs, sizes, begin = [], [], [], 0
    for side in at.sides:
        mine.append(np.uint64(side.address) + rows * np.uint64(side.layer) + own * np.uint64(side.piece))
        theirs.append(in_arena + rows * np.uint64(at.layer_bytes) + np.uint64(begin))
        sizes.append(np.full(mine[-1].shape, side.piece, np.uint64))
        begin += side.piece
    return _copies(way, np.stack(mine), np.stack(theirs), np.stack(sizes)).merged()


def _rows(way: Way, at: Layout, first: int, layers: int, pages: NDArray[np.int32], slots: NDArray[np.int32]) -> Copies:
    """The same where a slot has several parts, so that each token is cut; [part, layer, page, token]."""
    part, layer, page, token = np.ogrid[: at.parts, first : first + layers, : len(pages), : at.tokens]
    in_arena = at.host + slots.astype(np.int64)[page] * at.slot + part * at.apart + layer * at.part_bytes
    mine, theirs, sizes, begin = [], [], [], 0
    for side in at.sides:
        row = at.row(side)
        in_page = (token * at.parts + part) * row
        mine.append(side.address + layer * side.layer + pages.astype(np.int64)[page] * side.piece + in_page)
        theirs.append(np.broadcast_to(in_arena + begin + token * row, mine[-1].shape))
        sizes.append(np.full(mine[-1].shape, row))
        begin += side.piece // at.parts
    both = [np.stack(numbers).astype(np.uint64) for numbers in (mine, theirs, sizes)]
    return _copies(way, *both)


def runs(way: Way, at: Layout, first: int, layers: int, slots: NDArray[np.int32], staging: int) -> Copies:
    """A copy a part of a page, between these layers of it and its place in a staging buffer that holds only them."""
    run, count = np.uint64(layers * at.part_bytes), len(slots) * at.parts
    mine = np.uint64(staging) + np.arange(count, dtype=np.uint64) * run
    parts = np.arange(at.parts, dtype=np.uint64) * np.uint64(at.apart)
    begin = np.uint64(at.host + first * at.part_bytes)
    theirs = begin + (slots.astype(np.uint64)[:, None] * np.uint64(at.slot) + parts).reshape(-1)
    copies = _copies(way, mine, theirs, np.full(count, run, np.uint64))
    return copies.merged() if run in (at.slot, at.apart) else copies


def _copies(way: Way, mine: NDArray[np.uint64], theirs: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> Copies:
    target, source = (mine, theirs) if way is Way.LOAD else (theirs, mine)
    return Copies(target.reshape(-1), source.reshape(-1), sizes.reshape(-1))
