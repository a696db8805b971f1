"""What a schedule policy sees, made of plain values: requests, a view, and a small tree of prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from stepwell import RunningView, WaitingView

SHORTEST_PREFIX = 16
"""Tokens of the tree's shortest prefixes; each that goes on from another has twice as many, but for the last."""
BRANCHES = 8
"""Paths into which the tree has forked after three prefixes."""


@dataclass(frozen=True, slots=True, eq=False)
class KitRequest:
    """A request in the queue (a `stepwell.WaitingView`). As in core, each is equal to itself alone."""

    order: int
    rid: str = ""
    arrival: float = 0.0
    length: int = 64
    max_new: int = 16
    priority: int = 0
    routing_key: str | None = None
    tenant: str | None = None
    passes: int = 0
    retractions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class KitRunning(KitRequest):
    """A request that holds pages (a `stepwell.RunningView`)."""

    generated: int = 0
    pages: int = 4
    unplanned: int = 0


@dataclass(slots=True, eq=False)
class KitPrefix:
    """A cached prefix (a `stepwell.Prefix`)."""

    tokens: int
    parent: KitPrefix | None
    """As in core's tree, another one once a prefix between the two is told apart (`KitView.cut`)."""


@dataclass
class KitView:
    """What a policy may ask (a `stepwell.ScheduleView`); `asked` counts the probes."""

    hits: Mapping[str, int] = field(default_factory=dict)
    """Cached tokens by request id. They also make the tree: requests of one branch share what both have cached."""
    running: Sequence[RunningView] = ()
    now: float = 1_000.0
    asked: int = 0
    branches: Mapping[str, int] = field(default_factory=dict)
    """The branch of a request by its id, below `BRANCHES`. Unsaid, it is the rank of arrival modulo that; two branches
    part where their numbers do, read in binary from the end."""
    expects: Mapping[str, float] = field(default_factory=dict)
    """Tokens yet to come by request id. Unsaid, all that it may still generate."""
    tree: dict[tuple[int, int], KitPrefix] = field(default_factory=dict, repr=False)
    """Prefixes known so far, by tokens and branch. Given on to a later view where the tree is still the same."""
    version: int = field(default_factory=count().__next__, init=False)
    """Each view is of a cache that has changed since."""

    def cached(self, request: WaitingView) -> int:
        """Tokens of the request's prompt that device or host hold."""
        self.asked += 1
        return self.hits.get(request.rid, 0)

    def prefix(self, request: WaitingView) -> KitPrefix | None:
        """The longest cached prefix of the request."""
        self.asked += 1
        tokens = self.hits.get(request.rid, 0)
        return self._node(tokens, self.branches.get(request.rid, request.order) % BRANCHES) if tokens else None

    def expected(self, request: WaitingView) -> float:
        """Tokens that it will probably generate yet."""
        return self.expects.get(request.rid, max(0, request.max_new - getattr(request, "generated", 0)))

    def cut(self, prefix: KitPrefix) -> KitView:
        """A later view, in which this prefix goes on from a new one: nobody's answers change, only its parent does."""
        above = prefix.parent.tokens if prefix.parent else 0
        prefix.parent = KitPrefix((above + prefix.tokens) // 2, prefix.parent)
        return replace(self)

    def _node(self, tokens: int, branch: int) -> KitPrefix:
        """The prefix of so many tokens on the way to a branch."""
        above = 1 << (tokens - 1).bit_length() >> 1
        forks = max(0, (tokens - 1).bit_length() - SHORTEST_PREFIX.bit_length() + 2)
        at = tokens, branch % min(BRANCHES, 1 << forks)
        if at not in self.tree:
            parent = self._node(above, branch) if above >= SHORTEST_PREFIX else None
            self.tree[at] = KitPrefix(tokens, parent)
        return self.tree[at]
