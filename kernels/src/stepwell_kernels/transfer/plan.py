"""What the CUDA kernel is told, as pages.cu lays it out."""

from __future__ import annotations

import ctypes

from stepwell_kernels.transfer.layout import UNIT, Layout

_LONGS = ctypes.c_uint64 * 2


class Divisor(ctypes.Structure):
    """A number that others, below 2**31, are divided by with one multiplication."""

    _fields_ = [("value", ctypes.c_uint32), ("magic", ctypes.c_uint32), ("shift", ctypes.c_uint32)]


class Plan(ctypes.Structure):
    """One copy: some layers of some pages."""

    _fields_ = [
        ("side", _LONGS),
        ("layer", _LONGS),
        ("page", _LONGS),
        ("host", ctypes.c_uint64),
        ("slot", ctypes.c_uint64),
        ("device_ids", ctypes.c_uint64),
        ("host_ids", ctypes.c_uint64),
        ("pages", ctypes.c_uint32),
        ("keys", ctypes.c_uint32),
        ("both", Divisor),
        ("run", Divisor),
        ("part", Divisor),
        ("row", Divisor * 2),
        ("apart", ctypes.c_uint64),
        ("parts", ctypes.c_uint32),
    ]


def divisor(value: int) -> Divisor:
    """For n below 2**31, (n * magic / 2**32 + n) >> shift is n // value."""
    shift = (value - 1).bit_length()
    return Divisor(value, (((1 << shift) - value) << 32) // value + 1, shift)


def plan(layout: Layout, first: int, layers: int, pages: int, device_ids: int, host_ids: int) -> Plan:
    """For layers `first` to `first + layers`; ids are addresses on the device, 0 for host ids that count from 0."""
    sides = layout.sides
    both = [sides[0], sides[-1]]
    return Plan(
        side=_LONGS(*(side.address + first * side.layer for side in both)),
        layer=_LONGS(*(side.layer for side in both)),
        page=_LONGS(*(side.piece for side in both)),
        host=layout.host + first * layout.part_bytes,
        slot=layout.slot,
        device_ids=device_ids,
        host_ids=host_ids,
        pages=pages,
        keys=sides[0].piece // layout.parts // UNIT,
        both=divisor(layout.part_bytes // UNIT),
        run=divisor(layers * layout.layer_bytes // UNIT),
        part=divisor(layers * layout.part_bytes // UNIT),
        row=(Divisor * 2)(*(divisor(max(1, layout.row(side) // UNIT)) for side in both)),
        apart=layout.apart,
        parts=layout.parts,
    )
