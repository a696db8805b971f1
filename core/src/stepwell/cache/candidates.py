"""What eviction policies hear, and when: of segments that come, are used, and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.abc.evict import EvictionPolicy, Segment
from stepwell.cache.groups import Geometry
from stepwell.cache.node import TIERS, Node, Seg
from stepwell.cache.recency import Recency

Policies = tuple[tuple[EvictionPolicy, ...], tuple[EvictionPolicy, ...]]


class Candidates:
    """Policies by tier and group, and the windows that go before all that these are asked for.

    Policies are read lazily while pages go, so of what goes they hear only when `settle` is called.
    """

    def __init__(self, geometry: Geometry, policies: Policies, used: Sequence[bool]) -> None:
        """`used`: of each tier whether it has any page."""
        self.policies = policies
        self.dead = tuple(tuple(Recency() for _ in geometry.groups) for _ in TIERS)
        """Window pages that no retained length needs."""
        self.now = 0
        """Logical time."""
        self.exposed = False
        """Whether a candidate was exposed since `settle`."""
        self.fallen: list[Seg] = []
        """Segments with pages that a retained length needed until after `settle`."""
        self._geometry = geometry
        self._notices: list[tuple[Callable[[Segment], None], Segment]] = []
        tiers = [tier for tier in TIERS if used[tier]]
        self._full = [(tier, g, policies[tier][g].on_hit) for g in geometry.full for tier in tiers]
        self._windows = [
            (tier, g, policies[tier][g].on_hit, self.dead[tier][g].on_hit) for g in geometry.windows for tier in tiers
        ]

    # region: at once

    def use(self, node: Node, first: Sequence[int]) -> None:
        """A request used all pages up to the end of `node`, of each group from page `first` on.

        They become the most recent candidates of their tiers. Of a full group only the last node is told of: the others
        have a child, and are no candidates before it is gone.
        """
        self.now += 1
        if node.parent is None:
            return
        node.last_used = self.now
        for tier, group, hit in self._full:
            run = node.runs[group]
            if run is not None and (segment := run.segments[tier]).pages:
                hit(segment)
        end = node.first + node.pages
        for tier, group, hit, revive in self._windows:
            start = first[group]
            here: Node | None = node if start < end else None
            while here is not None:
                run = here.runs[group]
                if run is not None and (segment := run.segments[tier]).pages:
                    if run.kept:
                        hit(segment)
                    else:
                        revive(segment)
                if here.first <= start:
                    break
                here = here.parent

    def place(self, segment: Seg, *, renewed: bool) -> None:
        """Pages of a full group came to a node without children. `renewed`: it had some."""
        policy = self.policies[segment.tier][segment.group]
        if renewed and segment.node.hits:
            policy.on_hit(segment)
            return
        if renewed:
            policy.on_remove(segment)
        policy.on_insert(segment)

    def announce(self, segment: Seg, *, oldest: bool = False) -> None:
        """Pages of a window came: for the policy where a length needs them, else before all others."""
        run = segment.node.runs[segment.group]
        if run is not None and run.kept:
            self.policies[segment.tier][segment.group].on_insert(segment)
        dead = self.dead[segment.tier][segment.group]
        if oldest:
            dead.on_expose(segment)
        else:
            dead.on_insert(segment)

    def relist(self, segment: Seg) -> None:
        """A segment that was held is a candidate again."""
        run = segment.node.runs[segment.group]
        full = self._geometry.groups[segment.group].full
        if full or (run is not None and run.kept):
            self.policies[segment.tier][segment.group].on_hit(segment)
        if not full:
            self.dead[segment.tier][segment.group].on_hit(segment)

    def keep(self, segment: Seg, fresh: bool) -> None:
        """A retained length needs pages of a window. `fresh`: the first that does."""
        policy = self.policies[segment.tier][segment.group]
        (policy.on_insert if fresh else policy.on_hit)(segment)

    def forget(self, tier: int, group: int, segments: Sequence[Seg]) -> None:
        """Segments left the tier."""
        orders: list[EvictionPolicy] = [self.policies[tier][group]]
        if not self._geometry.groups[group].full:
            orders.append(self.dead[tier][group])
        for order in orders:
            gone = order.on_remove
            for segment in segments:
                gone(segment)

    # endregion

    # region: at the next settle

    def tell(self, listener: Callable[[Segment], None], segment: Segment) -> None:
        """Call a policy's method later."""
        self._notices.append((listener, segment))

    def pass_over(self, segment: Seg) -> None:
        """A policy's proposal cannot be taken; it is no candidate until it is announced again."""
        self.tell(self.policies[segment.tier][segment.group].on_remove, segment)

    def withdraw(self, segment: Seg) -> None:
        """A segment has no pages left."""
        self.pass_over(segment)
        if not self._geometry.groups[segment.group].full:
            self.tell(self.dead[segment.tier][segment.group].on_remove, segment)

    def expose(self, segment: Seg) -> None:
        """The last child of a segment went."""
        self.exposed = True
        self.tell(self.policies[segment.tier][segment.group].on_expose, segment)

    def forsake(self, segment: Seg) -> None:
        """Fewer retained lengths need a window's pages; those that none needs go next."""
        run = segment.node.runs[segment.group]
        if run is None or not run.kept:
            self.pass_over(segment)
        dead = self.dead[segment.tier][segment.group]
        self.tell(dead.on_remove, segment)
        self.tell(dead.on_expose, segment)
        self.fallen.append(segment)

    def settle(self) -> None:
        """Tell policies what happened."""
        self.exposed = False
        self.fallen.clear()
        if self._notices:
            notices, self._notices = self._notices, []
            for listener, segment in notices:
                listener(segment)

    # endregion
