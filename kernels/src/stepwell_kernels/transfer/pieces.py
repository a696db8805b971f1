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


def runs(way: Way, at: Layout, first: int, layers: int, slots: NDArray[np.int32], staging: int) -> Copies:
    """A copy a page, between these layers of its slot and its place in a staging buffer that holds only them."""
    run = np.uint64(layers * at.layer_bytes)
    mine = np.uint64(staging) + np.arange(len(slots), dtype=np.uint64) * run
    theirs = np.uint64(at.host + first * at.layer_bytes) + slots.astype(np.uint64) * np.uint64(at.slot)
    copies = _copies(way, mine, theirs, np.full(len(slots), run, np.uint64))
    return copies.merged() if at.slot == run else copies


def _copies(way: Way, mine: NDArray[np.uint64], theirs: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> Copies:
    target, source = (mine, theirs) if way is Way.LOAD else (theirs, mine)
    return Copies(target.reshape(-1), source.reshape(-1), sizes.reshape(-1))
