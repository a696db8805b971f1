"""Where the pieces of pages lie: addresses and distances in bytes of a pool and of an arena's slots.

A piece is what is contiguous on both sides: one side (K or V) of one layer of one page; where slots have several parts,
of one token and one part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool

UNIT = 16
"""Bytes of the widest load of a thread; kernels copy whole ones."""


@dataclass(frozen=True, slots=True)
class Side:
    """K or V of a pool."""

    address: int
    layer: int
    """From layer to layer."""
    piece: int
    """Bytes of a page, which is also the way from page to page."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A pool beside the slots that its pages go to."""

    sides: tuple[Side, ...]
    host: int
    """Where slot 0 begins."""
    slot: int
    """From slot to slot."""
    layers: int
    tokens: int = 1
    """Of a page."""
    parts: int = 1
    """Of a slot, with an equal share of each token."""
    apart: int = 0
    """From part to part."""

    @property
    def layer_bytes(self) -> int:
        """Both sides of a layer of a page."""
        return sum(side.piece for side in self.sides)

    @property
    def part_bytes(self) -> int:
        """As much of them as lies side by side in a slot."""
        return self.layer_bytes // self.parts

    def row(self, side: Side) -> int:
        """Bytes of one token in a part."""
        return side.piece // (self.tokens * self.parts)

    @property
    def in_units(self) -> bool:
        """Whether all that is copied begins and ends at whole units."""
        places = [number for side in self.sides for number in (side.address, side.layer, side.piece)]
        rows = [self.row(side) for side in self.sides] if self.parts > 1 else []
        return not any(number % UNIT for number in (*places, *rows, self.host, self.slot, self.apart))


def layout(pool: PagePool, host: HostPages) -> Layout:
    """Of a pool and the slots for its pages. Raises ValueError where they hold different pages."""
    if pool.shape != host.shape:
        raise ValueError(f"a pool of {pool.shape} does not go with slots of {host.shape}")
    item = pool.shape.dtype.itemsize
    sides = tuple(Side(side.data_ptr(), side.stride(0) * item, side.stride(1) * item) for side in pool.sides)
    return Layout(
        sides,
        host.sides[0].data_ptr(),
        host.sides[0].stride(0) * item,
        pool.shape.layers,
        pool.shape.page_size,
        host.parts,
        host.apart,
    )
