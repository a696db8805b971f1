"""The one function that answers every match: the longest prefix whose pages are there, and which pages they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy import frombuffer, int32

from stepwell.cache.groups import Geometry, Group
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node
from stepwell.cache.pool import NO_IDS
from stepwell.types import Ids

LEAPS = 32
"""So many windows are looked at one by one before all lengths are looked at together."""

NO_ID: Final = np.int32(-1)
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
    quick = on_device(geometry, leads, node, length)
    if quick is None:
        if not load:
            length = min([length, *(len(ids) // 4 for ids in _leading(geometry, leads, node))])
        length, node = longest(geometry, node, length, on_host=load)
        quick = on_device(geometry, leads, node, length)
    if quick is None:
        return _on_either(geometry, leads, node, length)
    device, first = quick
    return Found(length, length, last_of(node, length), device, [None] * len(first), first)


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
    while node.first >= length and node.parent is not None:
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
        if run.local is not None:
            solid = False
        low = here.first
        here = here.parent
    parts.reverse()
    ids = b"".join(parts)
    if not solid and len(ids) < 4 * (end - low):
        return None
    ids = ids[4 * (start - low) : 4 * (length - low)]
    return ids if solid or ABSENT not in ids else None


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
    found.device_length, _ = longest(geometry, node, boundary, on_host=False)
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


def longest(geometry: Geometry, node: Node, length: int, *, on_host: bool) -> tuple[int, Node]:
    """The longest length, at most `length` pages, whose windows are there, and a node that reaches it.

    It is looked for from the end backwards: where a window has a hole the next length to try is where pages go on below
    that hole. What lies in between is passed by node, and once: the other groups have no use for it either.
    """
    plan = geometry.plan
    node = last_of(node, length)
    at = good = 0
    for _ in range(LEAPS):
        if good == len(plan):
            return length, node
        group, start_of = plan[at]
        hole = _hole(node, group, start_of(length), length, on_host)
        if hole is None:
            good += 1
            at = at + 1 if at + 1 < len(plan) else 0
        else:
            good = 0
            length, node = _below(geometry.groups[group], group, *hole, on_host)
    if good == len(plan):
        return length, node
    path = path_to(node)
    there = [(g, flags(path, g, length, on_host=on_host)) for g in geometry.windows]
    return int(np.flatnonzero(usable(geometry, length, there))[-1]), node


def _hole(node: Node, group: int, start: int, length: int, on_host: bool) -> tuple[Node, int] | None:
    """The last absent one of pages [start, length), which ends in `node`, and the node that it is of."""
    while length > start:
        run = node.runs[group]
        if run is None:
            return node, length - 1
        there = run.mask if on_host else run.local
        low = node.first
        if there is not None:
            hole = there.rfind(0, start - low if start > low else 0, length - low)
            if hole >= 0:
                return node, low + hole
        length = low
        if node.parent is None:
            break
        node = node.parent
    return None


def _below(needs: Group, group: int, node: Node, hole: int, on_host: bool) -> tuple[int, Node]:
    """The next length to try where page `hole`, of `node`, is absent, and the node of its last page."""
    floor = needs.bare(hole)
    length = hole
    while length > floor:
        run = node.runs[group]
        while run is None and node.first > floor and node.parent is not None:
            node = node.parent
            run = node.runs[group]
        if run is not None:
            length = min(hole, node.first + node.pages)
            there = run.mask if on_host else run.local
            if there is not None:
                length = node.first + there.rfind(1, 0, length - node.first) + 1
            if length > max(floor, node.first):
                return length, node
        if node.first <= floor or node.parent is None:
            break
        node = node.parent
    return floor, last_of(node, floor)


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
