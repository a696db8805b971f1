"""Heaviest branch first: the tree of cached prefixes is walked depth first, where most requests wait below.

Requests on one branch run one after another while the branch is resident, deepest first; what lies above a branch is
needed until the last of them has run. Unlike the longest prefix, a prefix that many share goes before a long one of a
single request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import cast

from stepwell import Context, Groups, Prefix, RankedPolicy, ScheduleView, WaitingView
from stepwell.settings import at_least
from stepwell_lpm.branches import Branches

Name = tuple[int, Prefix | None]
"""A group: priority, and what is cached of its requests."""


@dataclass(frozen=True, slots=True)
class DfsWeightConfig:
    """The `[schedule]` table when `use = "dfs-weight"`."""

    max_passes: int = 64
    """A request that later ones have passed this often goes first. 0 is arrival order."""

    def __post_init__(self) -> None:
        at_least("max_passes", self.max_passes, 0)


class DfsWeight(RankedPolicy):
    """By priority, then depth first by requests on a branch; those on just a node come after its branches.

    Branches of one weight go by their oldest request, requests with one prefix by arrival.
    """

    probes = True

    def __init__(self, config: DfsWeightConfig, context: Context | None) -> None:
        self.max_passes = config.max_passes
        self._groups: Groups | None = None
        """Those of which `_trees` keeps the branches."""
        self._trees: dict[int, Branches] = {}
        """By priority."""
        self._version = -1

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[Name, float]:
        return (request.priority, view.prefix(request)), 0.0

    def merge(self, groups: Groups, view: ScheduleView) -> Iterator[WaitingView]:
        self._follow(groups, view.version)
        trees = sorted(self._trees.items(), key=itemgetter(0), reverse=True)
        names = ((priority, prefix) for priority, tree in trees for prefix in tree.walk())
        return chain.from_iterable(map(groups.__getitem__, names))

    def _follow(self, groups: Groups, version: int) -> None:
        """Bring the trees up to date with what has changed in the groups and in the cache."""
        names = groups.news()
        if groups is not self._groups:
            self._groups, self._trees, self._version = groups, {}, version
            names = set(groups)
        for priority, prefix in cast("set[Name]", names):
            group = groups.get((priority, prefix))
            tree = self._trees.setdefault(priority, Branches())
            tree.wait(prefix, len(group) if group else 0, group.first.order if group else None)
        if version != self._version:
            self._version = version
            for tree in self._trees.values():
                tree.rejoin()
        self._trees = {priority: tree for priority, tree in self._trees.items() if tree}
