"""The one function that answers every match: the longest prefix whose pages are there, and which pages they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy import frombuffer, int32

from stepwell.cache.groups import Geometry
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node
from stepwell.cache.pool import NO_IDS, Flags
from stepwell.types import Ids

LEAPS = 32
"""So many windows are looked at one by one before all lengths are looked at together."""

NO_ID: Final = np.int32(-1)


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


def whole(node: Node, length: int) -> Node:
    """The last node on the way to `node` that `length` pages use whole; perhaps the root."""
    while node.first + node.pages > length and node.parent is not None:
        node = node.parent
    return node


def path_to(node: Node) -> list[Node]:
    """All nodes on the way to `node`, the root not among them."""
    nodes: list[Node] = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    nodes.reverse()
    return nodes


def last_of(node: Node, length: int) -> Node:
    """The node of page `length - 1`; whoever holds `length` pages holds it in the tree, those behind may go."""
    while node.first >= length and node.parent is not None:
        node = node.parent
    return node


def find(geometry: Geometry, leads: list[bytes], node: Node, length: int, *, load: bool = True) -> Found:
    """The longest usable prefix of at most `length` pages on the way to `node`, which reaches that far.

    `leads`: device ids of the first full group on that way. `load`: pages on host count.
    """
    if geometry.windowed and node.bare:
        length, node = above_bare(node, length)
    quick = on_device(geometry, leads, node, length)
    if quick is None:
        if not load:
            length = min([length, *(len(ids) // 4 for ids in _leading(geometry, leads, node))])
        length, node = longest(geometry, node, length, load)
        quick = on_device(geometry, leads, node, length)
    if quick is None:
        return _on_either(geometry, leads, node, length)
    return Found(length, length, last_of(node, length), quick[0], [None] * len(quick[0]), quick[1])


def above_bare(node: Node, length: int) -> tuple[int, Node]:
    """What is left of a length when it ends in nodes that no window group has a page of, and the last node then."""
    while node.bare:
        assert node.parent is not None
        node = node.parent
    end = node.first + node.pages
    return (end if end < length else length), node


def on_device(geometry: Geometry, leads: list[bytes], node: Node, length: int) -> tuple[list[Ids], list[int]] | None:
    """Ids by group and the first page of each, in the common case that everything up to `length` is on device."""
    device = [NO_IDS] * len(geometry.groups)
    first = [0] * len(device)
    for g, start_of in geometry.plan:
        start = first[g] = start_of(length)
        window = _window(node, g, start, length)
        if window is None:
            return None
        device[g] = frombuffer(window, int32, length - start)
    lead = True
    for g in geometry.full:
        ids = b"".join(leads if lead else _leads(node, g))
        if len(ids) < 4 * length:
            return None
        lead = False
        device[g] = frombuffer(ids, int32, length)
    return device, first


def _leading(geometry: Geometry, leads: list[bytes], node: Node) -> list[bytes]:
    """Of each full group the ids on device, all of them leading."""
    return [b"".join(_leads(node, g) if nth else leads) for nth, g in enumerate(geometry.full)]


def _leads(node: Node, group: int) -> list[bytes]:
    parts: list[bytes] = []
    while node.parent is not None:
        parts.append(node.run(group).device)
        node = node.parent
    parts.reverse()
    return parts


def _window(node: Node, group: int, start: int, length: int) -> bytes | None:
    """Device ids of pages [start, length) of a window group; None where one is absent."""
    if start == length:
        return b""
    low = node.first
    while low >= length and node.parent is not None:
        node = node.parent
        low = node.first
    run = node.runs[group]
    if run is None:
        return None
    if low <= start:
        if run.local is not None and run.local.find(0, start - low, length - low) >= 0:
            return None
        return run.device[4 * (start - low) : 4 * (length - low)]
    parts: list[bytes] = []
    append = parts.append
    end = low + node.pages
    here: Node | None = node
    while here is not None:
        run = here.runs[group]
        if run is None:
            return None
        append(run.device)
        low = here.first
        if run.local is not None and run.local.find(0, start - low if start > low else 0, length - low) >= 0:
            return None
        if low <= start:
            break
        here = here.parent
    parts.reverse()
    ids = b"".join(parts)
    return ids[4 * (start - low) : 4 * (length - low)] if end > length or start > low else ids


def _on_either(geometry: Geometry, leads: list[bytes], node: Node, length: int) -> Found:
    """All that a usable length needs, some of it on host only."""
    node = last_of(node, length)
    found = Found(length, length, node, [NO_IDS] * len(geometry.groups), [None] * len(geometry.groups), [])
    found.first = [group.first(length) for group in geometry.groups]
    boundary = length
    for g, ids in zip(geometry.full, _leading(geometry, leads, node), strict=True):
        there = min(len(ids) // 4, length)
        found.device[g] = frombuffer(ids + ABSENT * (length - there), int32, length)
        if there < length:
            found.host[g] = frombuffer(ABSENT * there + _ids(node, g, HOST, there, length), int32)
            boundary = min(boundary, there)
    for g, start_of in geometry.plan:
        start = start_of(length)
        device = found.device[g] = frombuffer(_ids(node, g, DEVICE, start, length), int32)
        if (device < 0).any():
            host = frombuffer(_ids(node, g, HOST, start, length), int32)
            found.host[g] = np.where(device < 0, host, NO_ID)
    found.device_length, _ = longest(geometry, node, boundary, False)
    return found


def _ids(node: Node, group: int, tier: int, start: int, length: int) -> bytes:
    """Ids of pages [start, length), which ends in `node`, in a tier; -1 where absent."""
    parts: list[bytes] = []
    low = end = node.first + node.pages
    here: Node | None = node
    while low > start and here is not None:
        run = here.runs[group]
        ids = b"" if run is None else run.host if tier == HOST else run.device
        parts.append(ids if len(ids) == 4 * here.pages else ids + ABSENT * (here.pages - len(ids) // 4))
        low = here.first
        here = here.parent
    parts.reverse()
    return b"".join(parts)[4 * (start - low) : 4 * (length - low)] if end > start else b""


def longest(geometry: Geometry, node: Node, length: int, on_host: bool) -> tuple[int, Node]:
    """The longest length, at most `length` pages, whose windows are there, and the node of its last page.

    It is looked for from the end backwards.
    """
    node = last_of(node, length)
    for _ in range(LEAPS):
        less, node = below_a_hole(geometry, node, length, on_host)
        if less == length:
            return length, node
        length = less
    path = path_to(node)
    there = [(g, flags(path, g, length, on_host=on_host)) for g in geometry.windows]
    length = int(np.flatnonzero(usable(geometry, length, there))[-1])
    return length, last_of(node, length)


def below_a_hole(geometry: Geometry, node: Node, length: int, on_host: bool) -> tuple[int, Node]:
    """`length` where all windows are there, else the next length to try: where pages go on below a window's hole.

    And the node of its last page.
    """
    while node.first >= length and node.parent is not None:
        node = node.parent
    for group, start_of in geometry.plan:
        start = start_of(length)
        here, end = node, length
        while end > start:
            run = here.runs[group]
            if run is None:
                return _below(geometry, group, here, end - 1, on_host)
            there = run.mask if on_host else run.local
            low = here.first
            if there is not None:
                hole = there.rfind(0, start - low if start > low else 0, end - low)
                if hole >= 0:
                    return _below(geometry, group, here, low + hole, on_host)
            end = low
            if end > start:
                assert here.parent is not None
                here = here.parent
    return length, node


def _below(geometry: Geometry, group: int, node: Node, hole: int, on_host: bool) -> tuple[int, Node]:
    """The longest length, below page `hole` of `node`, whose last page a window group has, or that needs none.

    And the node of its last page.
    """
    floor = geometry.groups[group].bare(hole)
    here = node
    while here.first + here.pages > floor:
        run = here.runs[group]
        if run is not None:
            low = here.first
            length = low + here.pages
            if length > hole:
                length = hole
            there = run.mask if on_host else run.local
            if there is not None:
                length = low + there.rfind(1, 0, length - low) + 1
            if length > low:
                if length <= floor:
                    break
                return length, here
        while True:
            assert here.parent is not None
            here = here.parent
            if not here.bare:
                break
    return floor, last_of(node if floor else here, floor)


def flags(path: list[Node], group: int, length: int, *, on_host: bool) -> bytes:
    """A byte for each page up to `length`: whether a window group has it."""
    parts: list[bytes] = []
    for node in path:
        run = node.runs[group]
        there = run and (run.mask if on_host else run.local)
        parts.append(bytes(node.pages) if run is None else there or b"\x01" * node.pages)
    return b"".join(parts)[:length]


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
