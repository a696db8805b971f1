"""What the tree is made of: nodes, their runs of pages per group, and the segments that eviction policies see."""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import numpy.typing as npt

from stepwell.abc.evict import Segment
from stepwell.types import Ids

DEVICE: Final = 0
HOST: Final = 1
TIERS: Final = (DEVICE, HOST)
ABSENT: Final = b"\xff\xff\xff\xff"
"""The page id -1."""
NO_PAGE: Final = 2**31 - 1
"""A page number behind all others."""

Places = npt.NDArray[np.intp]
"""Page numbers within a node."""


class Seg(Segment):
    """A segment that knows its node; what a node knows once, it says for all its segments."""

    __slots__ = ("group", "node", "tier")

    def __init__(self, node: Node, group: int, tier: int) -> None:
        self.pages = 0
        self.node = node
        self.group = group
        self.tier = tier

    @property
    def hits(self) -> int:
        return self.node.hits

    @hits.setter
    def hits(self, value: int) -> None:
        self.node.hits = value

    @property
    def last_used(self) -> int:
        return self.node.last_used

    @last_used.setter
    def last_used(self, value: int) -> None:
        self.node.last_used = value

    @property
    def started(self) -> int:
        return self.node.started

    @started.setter
    def started(self, value: int) -> None:
        self.node.started = value

    @property
    def priority(self) -> int:
        return self.node.priority

    @priority.setter
    def priority(self, value: int) -> None:
        self.node.priority = value


class Run:
    """The pages of one node and one group. Ids are immutable bytes, so that no array keeps a larger one alive."""

    __slots__ = ("below", "deep", "device", "ends", "host", "kept", "local", "mask", "reach", "segments")

    def __init__(self, node: Node, group: int) -> None:
        self.device = b""
        """Ids on device. Full groups: of the leading pages that are there. Others: of all pages, -1 where absent."""
        self.host = b""
        """Ids on host of all pages, -1 where absent; empty where none is."""
        self.mask: bytes | None = None
        """Windows only: a byte a page, whether it is on any tier; None where all are."""
        self.local: bytes | None = None
        """Windows only: a byte a page, whether it is on device; None where all are."""
        self.kept = b""
        """Windows only: a byte a page, whether a retained length needs it; empty where none."""
        self.ends: tuple[int, ...] = ()
        """Windows only: the retained lengths whose last page is here, in pages of the prompt, ascending."""
        self.deep = NO_PAGE
        """Windows only: the lowest page of the prompt that retained lengths below need of this node."""
        self.reach = NO_PAGE
        """Windows only: the lowest page of the prompt that retained lengths here, or below and through here, need."""
        self.below = [0, 0]
        """Full groups only: children that have pages in each tier."""
        self.segments = (Seg(node, group, DEVICE), Seg(node, group, HOST))

    def ids(self, tier: int, pages: int) -> Ids:
        """Ids of all `pages` pages in a tier, -1 where absent; a copy."""
        raw = self.host if tier else self.device
        ids = np.full(pages, -1, dtype=np.int32)
        ids[: len(raw) // 4] = np.frombuffer(raw, dtype=np.int32)
        return ids


class Node:
    """A run of whole pages of tokens that all who pass here share."""

    __slots__ = (
        "bare", "children", "digests", "edge", "end", "expires", "first", "hits", "hot", "last_used", "lead", "pages",
        "parent", "priority", "runs", "started", "wanted",
    )  # fmt: skip

    def __init__(self, parent: Node | None, edge: bytes, first: int, pages: int, groups: int, now: int) -> None:
        self.parent = parent
        """None: the root, or no longer in the tree."""
        self.edge = edge
        self.first = first
        """Index of the first page."""
        self.pages = pages
        self.end: int = (parent.end if parent is not None else 0) + len(edge)
        """Bytes of tokens from the root to the end of the edge."""
        self.children: dict[bytes, Node] = {}
        """By the tokens of their first page."""
        self.hot: Node = NOTHING
        """The child that was used last."""
        self.lead = b""
        """The device ids of the first full group, where a walk finds them fastest."""
        self.runs: list[Run | None] = [None] * groups
        self.bare = parent is not None
        """Whether no window group has a page here. The root's is False, so that who looks for a page stops there."""
        self.digests = b""
        """Digests of leading pages, as far as they were asked for; the root's is the namespace."""
        self.hits = 0
        """Requests that used the node, but for the one that made it."""
        self.last_used = now
        self.started = now
        self.priority = 0
        self.expires: float | None = None
        self.wanted = False
        """Whether a save is queued."""

    def run(self, group: int) -> Run:
        """The run of a group; made where there is none."""
        found = self.runs[group]
        if found is None:
            found = self.runs[group] = Run(self, group)
            self.bare = False
        return found


class _Nothing(Node):
    """The child of those that have none: its edge starts nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        # `startswith` of an empty tuple is false at once, so a walk needs no test for a missing child.
        self.edge = cast(bytes, ())
        self.parent = None
        self.children = {}


NOTHING: Node = _Nothing()


def count(ids: bytes) -> int:
    """Pages that are there."""
    return int(np.count_nonzero(np.frombuffer(ids, dtype=np.int32) >= 0))


def some(ids: bytes) -> bytes:
    """The ids, empty where no page is there."""
    return ids if count(ids) else b""


def any_of(flags: bytes) -> bytes:
    """The flags, empty where none is set."""
    return flags if 1 in flags else b""
