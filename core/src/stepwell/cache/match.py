"""The one function that answers every match: the longest prefix whose pages are there, and which pages they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy import frombuffer, int32

from stepwell.cache.groups import Geometry
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node
from stepwell.types import Ids

LEAPS = 8
"""So many steps back over absent pages are tried before all lengths are looked at together."""

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Found:
    """A usable prefix: its pages, and the last node that it lies on, perhaps only in part."""

    length: int
    device_length: int
    node: Node
    device: list[Ids]
    host: list[Ids | None]
    """None: nothing has to be loaded."""
    first: list[int]

    def path(self) -> list[Node]:
        """All nodes that it lies on."""
        nodes: list[Node] = []
        node = self.node
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


def whole(node: Node, length: int) -> Node:
    """The last node on the way to `node` that `length` pages use whole; perhaps the root."""
    while node.first + node.pages > length and node.parent is not None:
        node = node.parent
    return node


def _last_of(node: Node, length: int) -> Node:
    """The node of page `length - 1`; whoever holds `length` pages holds it in the tree, those behind may go."""
    while node.first >= length and node.parent is not None:
        node = node.parent
    return node


def find(geometry: Geometry, leads: list[bytes], node: Node, length: int, *, load: bool = True) -> Found:
    """The longest usable prefix of at most `length` pages on the way to `node`, which reaches that far.

    `leads`: device ids of the first full group on that way. `load`: pages on host count.
    """
    quick = on_device(geometry, leads, node, length)
    if quick is None:
        return _anywhere(geometry, node, length, load)
    device, first = quick
    return Found(length, length, _last_of(node, length), device, [None] * len(first), first)


def on_device(geometry: Geometry, leads: list[bytes], node: Node, length: int) -> tuple[list[Ids], list[int]] | None:
    """Ids by group and the first page of each, in the common case that everything up to `length` is on device."""
    device: list[Ids] = []
    first: list[int] = []
    lead = True
    for g, full, start_of in geometry.plan:
        if full:
            ids = b"".join(leads if lead else _leads(node, g))
            if len(ids) < 4 * length:
                return None
            lead, start = False, 0
        else:
            start = start_of(length)
            window = _window(node, g, start, length)
            if window is None:
                return None
            ids = window
        device.append(frombuffer(ids, int32, length - start))
        first.append(start)
    return device, first


def _leads(node: Node, group: int) -> list[bytes]:
    parts: list[bytes] = []
    while node.parent is not None:
        parts.append(node.run(group).device)
        node = node.parent
    parts.reverse()
    return parts


def _window(node: Node, group: int, start: int, length: int) -> bytes | None:
    """Device ids of pages [start, length) of a window group; None where one is absent."""
    while node.first >= length > start and node.parent is not None:
        node = node.parent
    parts: list[bytes] = []
    append = parts.append
    solid = True
    low = end = node.first + node.pages
    here: Node | None = node
    while low > start and here is not None:
        run = here.runs[group]
        if run is None:
            return None
        append(run.device)
        solid = solid and run.solid
        low = here.first
        here = here.parent
    parts.reverse()
    ids = b"".join(parts)
    if not solid and len(ids) < 4 * (end - low):
        return None
    ids = ids[4 * (start - low) : 4 * (length - low)]
    return ids if solid or ABSENT not in ids else None


def _anywhere(geometry: Geometry, node: Node, length: int, load: bool) -> Found:
    """Some page is on host only, or absent."""
    found = Found(length, length, node, [], [], [])
    path = found.path()
    boundary = min([length, *(_leading(path, group) for group in geometry.full)])
    on_device = longest(geometry, boundary, [(g, flags(path, g, boundary, on_host=False)) for g in geometry.windows])
    usable = on_device
    if load:
        usable = longest(geometry, length, [(g, flags(path, g, length, on_host=True)) for g in geometry.windows])
    found.length, found.device_length = usable, min(on_device, usable)
    found.node = _last_of(node, usable)
    path = [part for part in path if part.first < usable]
    found.first = [group.first(usable) for group in geometry.groups]
    for group, start in enumerate(found.first):
        device = gather(path, group, DEVICE, start, usable)
        absent = device < 0
        host = None
        if absent.any():
            host = gather(path, group, HOST, start, usable)
            host[~absent] = -1
        found.device.append(device)
        found.host.append(host)
    return found


def _leading(path: list[Node], group: int) -> int:
    return sum(len(node.run(group).device) for node in path) // 4


def flags(path: list[Node], group: int, length: int, *, on_host: bool) -> bytes:
    """A byte for each page up to `length`: whether a window group has it."""
    parts: list[bytes] = []
    for node in path:
        run = node.runs[group]
        if run is None:
            parts.append(bytes(node.pages))
        elif not on_host and (run.loads or run.mask is not None):
            parts.append((run.ids(DEVICE, node.pages) >= 0).tobytes())
        else:
            parts.append(run.mask or b"\x01" * node.pages)
    return b"".join(parts)[:length]


def longest(geometry: Geometry, length: int, present: list[tuple[int, bytes]]) -> int:
    """The longest usable length, at most `length` pages, given which pages of each window group are there."""
    for _ in range(LEAPS):
        for group, there in present:
            needs = geometry.groups[group]
            hole = there.rfind(0, needs.first(length), length)
            if hole >= 0:
                length = needs.below(there.rfind(1, 0, hole) + 1, hole)
                break
        else:
            return length
    return int(np.flatnonzero(usable(geometry, length, present))[-1])


def usable(geometry: Geometry, length: int, present: list[tuple[int, bytes]]) -> Flags:
    """For each length from 0 to `length` pages whether it is usable."""
    lengths = np.arange(length + 1)
    good = np.ones(length + 1, dtype=np.bool_)
    for group, there in present:
        before = np.zeros(length + 1, dtype=np.int64)
        np.cumsum(np.frombuffer(there, np.uint8, length), out=before[1:])
        first = geometry.groups[group].firsts(lengths)
        good &= before - before[first] == lengths - first
    return good


def present(geometry: Geometry, path: list[Node], reached: int, total: int) -> list[Flags]:
    """Of each group which of `total` pages are on any tier, where the tree knows `reached` of them."""
    there = []
    for g, group in enumerate(geometry.groups):
        pages = np.zeros(total, dtype=np.bool_)
        known = b"\x01" * reached if group.full else flags(path, g, reached, on_host=True)
        pages[:reached] = np.frombuffer(known, dtype=np.bool_)
        there.append(pages)
    return there


def lengths(geometry: Geometry, total: int, there: Sequence[Flags]) -> Flags:
    """For each length from 0 to `total` pages whether it is usable, given which pages of each group are there."""
    good = usable(geometry, total, [(g, there[g].tobytes()) for g in geometry.windows])
    for g in geometry.full:
        absent = np.flatnonzero(~there[g])
        if len(absent):
            good[int(absent[0]) + 1 :] = False
    return good


def agreed(geometry: Geometry, total: int, ranks: Sequence[Sequence[Flags]]) -> Flags:
    """`lengths` that every rank can use, given what each has of each group.

    The least of their longest would not do: a rank whose window reaches further need not have the shorter one.
    """
    return lengths(geometry, total, [np.logical_and.reduce(of_group) for of_group in zip(*ranks, strict=True)])


def gather(path: list[Node], group: int, tier: int, start: int, length: int) -> Ids:
    """Ids of pages [start, length) in a tier, -1 where absent; a copy."""
    parts: list[bytes] = []
    for node in path:
        if node.first + node.pages <= start:
            continue
        run = node.runs[group]
        ids = b"" if run is None else run.host if tier == HOST else run.device
        parts.append(ids + ABSENT * (node.pages - len(ids) // 4))
    offset = path[-1].first + path[-1].pages - sum(len(part) for part in parts) // 4 if path else 0
    return np.frombuffer(b"".join(parts), np.int32)[start - offset : length - offset].copy()
