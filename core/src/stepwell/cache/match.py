"""The one function that answers every match: the longest prefix whose pages are there, and which pages they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.cache.groups import Geometry
from stepwell.cache.node import ABSENT, DEVICE, HOST, Node
from stepwell.types import Ids

LEAPS = 8
"""So many steps back over absent pages are tried before all lengths are looked at together."""

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Found:
    """A usable prefix: its pages, and the nodes that it lies on, the last perhaps only in part."""

    length: int
    device_length: int
    path: list[Node]
    device: list[Ids]
    host: list[Ids | None]
    """None: nothing has to be loaded."""
    first: list[int]


def find(geometry: Geometry, path: list[Node], length: int, *, load: bool = True) -> Found:
    """The longest usable prefix of at most `length` pages along `path`, which reaches that far.

    `load`: pages on host count.
    """
    quick = _on_device(geometry, path, length)
    if quick is not None:
        return quick
    boundary = min([length, *(_leading(path, group) for group in geometry.full)])
    on_device = longest(geometry, boundary, [(g, flags(path, g, boundary, on_host=False)) for g in geometry.windows])
    usable = on_device
    if load:
        usable = longest(geometry, length, [(g, flags(path, g, length, on_host=True)) for g in geometry.windows])
    path = [node for node in path if node.first < usable]
    first = [group.first(usable) for group in geometry.groups]
    found = Found(usable, min(on_device, usable), path, [], [], first)
    for group, start in enumerate(first):
        device = gather(path, group, DEVICE, start, usable)
        absent = device < 0
        host = None
        if absent.any():
            host = gather(path, group, HOST, start, usable)
            host[~absent] = -1
        found.device.append(device)
        found.host.append(host)
    return found


def _on_device(geometry: Geometry, path: list[Node], length: int) -> Found | None:
    """The common case: everything up to `length` is on device. None where it is not."""
    if path and path[-1].first >= length:
        path = [node for node in path if node.first < length]
    device: list[Ids] = []
    first: list[int] = []
    for g, group in enumerate(geometry.groups):
        if group.full:
            ids = b"".join([node.lead for node in path]) if g == geometry.full[0] else _join(path, g)
            if len(ids) < 4 * length:
                return None
            start = 0
            device.append(np.frombuffer(ids, np.int32, length))
        else:
            start = group.first(length)
            window = _window(path, g, start, length)
            if window is None:
                return None
            device.append(np.frombuffer(window, np.int32))
        first.append(start)
    return Found(length, length, path, device, [None] * len(first), first)


def _join(path: list[Node], group: int) -> bytes:
    return b"".join([node.run(group).device for node in path])


def _window(path: list[Node], group: int, start: int, length: int) -> bytes | None:
    """Device ids of pages [start, length) of a window group; None where one is absent."""
    parts: list[bytes] = []
    at, end = len(path), length
    while end > start:
        at -= 1
        node = path[at]
        run = node.runs[group]
        if run is None or run.loads or not run.device:
            return None
        low, high = max(start - node.first, 0), end - node.first
        if run.mask is not None and run.mask.find(0, low, high) >= 0:
            return None
        parts.append(run.device[4 * low : 4 * high])
        end = node.first
    parts.reverse()
    return b"".join(parts)


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
