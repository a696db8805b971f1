"""The proof that every page has exactly the owners that are counted, and that the tree keeps its rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from stepwell.cache.index import Index
from stepwell.cache.ledger import Lease
from stepwell.cache.node import ABSENT, DEVICE, HOST, NO_PAGE, NOTHING, TIERS, Node, Run
from stepwell.cache.pool import Flags
from stepwell.cache.retained import marks
from stepwell.errors import AuditError
from stepwell.types import TOKEN_BYTES, Ids


def audit(index: Index, leases: Iterable[Lease], copies: dict[tuple[int, int], Ids]) -> None:
    """Raise AuditError where a page or a node breaks a rule. `copies`: per tier and group what copies hold."""
    leases = list(leases)
    tree: dict[tuple[int, int], list[int]] = {key: [] for key in copies}
    for node in nodes(index):
        _shape(index, node)
        for group, run in enumerate(node.runs):
            if run is not None:
                _run(index, node, group, run)
                for tier in TIERS:
                    ids = run.ids(tier, node.pages)
                    tree[tier, group].extend(ids[ids >= 0].tolist())
    for (tier, group), moving in copies.items():
        holders = tree[tier, group] + moving.tolist()
        if tier == DEVICE:
            for lease in leases:
                table = lease.tables[group]
                holders.extend(table[table >= 0].tolist())
        index.pools[tier][group].audit(holders, tree[tier, group])


def nodes(index: Index) -> Iterator[Node]:
    """All nodes but the roots, parents first."""
    stack = list(index.roots.values())
    while stack:
        node = stack.pop()
        if node.parent is not None:
            yield node
        stack.extend(node.children.values())


def _fail(node: Node, what: str) -> None:
    raise AuditError(f"the node of pages {node.first} to {node.first + node.pages}: {what}")


def _shape(index: Index, node: Node) -> None:
    parent, step = node.parent, index.geometry.step
    assert parent is not None
    if not node.pages or len(node.edge) != node.pages * step or node.pages > index.cap:
        _fail(node, f"an edge of {len(node.edge) // TOKEN_BYTES} tokens")
    if node.first != parent.first + parent.pages or node.end != parent.end + len(node.edge):
        _fail(node, "does not continue its parent")
    if parent.children.get(node.edge[:step]) is not node:
        _fail(node, "its parent has another child in its place")
    if node.hot is not NOTHING and node.hot.parent is not node:
        _fail(node, "its hot child is not a child")
    lead = node.run(index.geometry.full[0]).device if index.geometry.full else b""
    if node.lead != lead:
        _fail(node, "the leading ids differ from the run's")
    if node.bare != all(node.runs[group] is None for group in index.geometry.windows):
        _fail(node, "is bare of windows, or is not, though marked otherwise")
    if not index.geometry.full and not node.children and all(run is None for run in node.runs):
        _fail(node, "has neither pages nor children")


def _run(index: Index, node: Node, group: int, run: Run) -> None:
    on_device, on_host = run.ids(DEVICE, node.pages) >= 0, run.ids(HOST, node.pages) >= 0
    for tier, there in ((DEVICE, on_device), (HOST, on_host)):
        if run.segments[tier].pages != int(there.sum()):
            _fail(node, f"a segment says {run.segments[tier].pages} pages, there are {int(there.sum())}")
        if run.segments[tier].node is not node or run.segments[tier].tier != tier:
            _fail(node, "a segment of another node")
    if run.host and len(run.host) != 4 * node.pages:
        _fail(node, "host ids of another length")
    if index.geometry.groups[group].full:
        _full(node, group, run, on_device | on_host)
    else:
        _window(node, run, on_device, on_host)
        _retained(index, node, group, run, on_device | on_host)


def _full(node: Node, group: int, run: Run, present: Flags) -> None:
    parent = node.parent
    assert parent is not None
    if not present.all():
        _fail(node, "a page of a full group is in no tier")
    if ABSENT in run.device and np.frombuffer(run.device, dtype=np.int32).min() < 0:
        _fail(node, "a hole on device")
    if run.device and parent.parent is not None and len(parent.run(group).device) != 4 * parent.pages:
        _fail(node, "a page on device behind one that is not")
    for tier in TIERS:
        below = sum(child.run(group).segments[tier].pages > 0 for child in node.children.values())
        if run.below[tier] != below:
            _fail(node, f"{run.below[tier]} children counted, {below} found")


def _window(node: Node, run: Run, on_device: Flags, on_host: Flags) -> None:
    present = on_device | on_host
    if not present.any():
        _fail(node, "a run without pages that is no tombstone")
    if (run.mask is None) != bool(present.all()) or (run.mask is not None and run.mask != present.tobytes()):
        _fail(node, "the mask differs from the pages")
    if (run.local is None) != bool(on_device.all()) or (run.local is not None and run.local != on_device.tobytes()):
        _fail(node, "the mask for the device differs from the pages")


def _retained(index: Index, node: Node, group: int, run: Run, present: Flags) -> None:
    """Marks are what retained lengths imply, and their windows are whole: what lies above is marked and not absent."""
    first = index.geometry.groups[group].first
    end = node.first + node.pages
    if list(run.ends) != sorted(set(run.ends)) or any(not node.first < length <= end for length in run.ends):
        _fail(node, "a retained length that does not end in it")
    below = [each.reach for child in node.children.values() if (each := child.runs[group]) is not None]
    if run.deep != min([low for low in below if low < end], default=NO_PAGE):
        _fail(node, "lengths below need more or less of it than it knows")
    firsts = [first(length) for length in run.ends]
    if run.reach != min([*firsts, run.deep]):
        _fail(node, "retained lengths reach further or less far back than it says")
    if run.kept != marks(node, run, firsts):
        _fail(node, "the marks are not those of the retained lengths")
    if (np.frombuffer(run.kept, dtype=np.bool_) & ~present[: len(run.kept)]).any():
        _fail(node, "a retained length without a page of its window")
    above = node.parent
    if run.reach < node.first and (above is None or above.runs[group] is None):
        _fail(node, "a retained length whose window is not whole")
