"""The part of the cache's tree on which requests wait, with the requests counted on every branch of it.

A change costs its path to the root: counts, and places among siblings, of the nodes above it. The cache's own tree
moves meanwhile: a node is cut in two, so that a branch gets another parent (`rejoin`), or leaves, and then those who
waited on it wait elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count
from math import inf

from stepwell import Prefix


class Branch:
    """A cached prefix, those who wait on just it, and its branches."""

    __slots__ = ("above", "by_age", "by_weight", "first", "oldest", "own", "prefix", "serial", "weight")

    def __init__(self, prefix: Prefix | None, above: Branch | None, serial: int) -> None:
        self.prefix = prefix
        self.above = above
        self.serial = serial
        """Tells branches apart while a request is counted in two places."""
        self.own = 0
        """Requests that wait on just this prefix."""
        self.first: float = inf
        """Rank of arrival of the first of them."""
        self.weight = 0
        """Requests that wait here or below."""
        self.oldest: float = inf
        """Rank of arrival of the first of those."""
        self.by_weight: list[tuple[int, float, int, Branch]] = []
        """Branches, heaviest first and by arrival among equals: negative weight, rank of arrival, serial, branch."""
        self.by_age: list[tuple[float, int]] = []

    @property
    def strayed(self) -> bool:
        """The cache has put another node above it."""
        return self.above is not None and self.prefix is not None and self.prefix.parent is not self.above.prefix

    def join(self, branch: Branch) -> None:
        """Count a branch among those of this one."""
        insort(self.by_weight, (-branch.weight, branch.oldest, branch.serial, branch))
        insort(self.by_age, (branch.oldest, branch.serial))

    def leave(self, branch: Branch) -> None:
        """Count it there no more. Its weight and age are still those with which it joined."""
        del self.by_weight[bisect_left(self.by_weight, (-branch.weight, branch.oldest, branch.serial))]
        del self.by_age[bisect_left(self.by_age, (branch.oldest, branch.serial))]


class Branches:
    """All of them, by prefix. False where nobody waits."""

    def __init__(self) -> None:
        self._serials = count(1)
        self._root = Branch(None, None, 0)
        self._branches: dict[Prefix | None, Branch] = {None: self._root}

    def __bool__(self) -> bool:
        return self._root.weight > 0

    def wait(self, prefix: Prefix | None, requests: int, first: int | None) -> None:
        """So many requests wait on a prefix now; `first` is the first one's rank of arrival."""
        branch = self._branches.get(prefix)
        if branch is None:
            if not requests:
                return
            branch = self._grow(prefix)
        more = requests - branch.own
        branch.own = requests
        branch.first = inf if first is None else first
        self._count(branch, more)

    def rejoin(self) -> None:
        """Follow the cache: branches whose parent is another one now join that one."""
        moved = [branch for branch in self._branches.values() if branch.strayed]
        for branch in moved:
            assert branch.prefix is not None and branch.above is not None
            if not branch.weight:
                continue  # it went when its last branch moved
            branch.above.leave(branch)
            self._count(branch.above, -branch.weight)
            branch.above = self._get(branch.prefix.parent)
            branch.above.join(branch)
            self._count(branch.above, branch.weight)

    def walk(self) -> Iterator[Prefix | None]:
        """Prefixes in order: of each, the heaviest branch first, and itself after its branches."""
        stack = [(self._root, iter(self._root.by_weight))]
        while stack:
            branch, rest = stack[-1]
            entry = next(rest, None)
            if entry is not None:
                stack.append((entry[3], iter(entry[3].by_weight)))
                continue
            stack.pop()
            if branch.own:
                yield branch.prefix

    def _get(self, prefix: Prefix | None) -> Branch:
        return self._branches.get(prefix) or self._grow(prefix)

    def _grow(self, prefix: Prefix | None) -> Branch:
        """A branch on which nobody waits yet, and what lies above it; it joins when it is counted."""
        missing: list[Prefix] = []
        at = prefix
        while at is not None and at not in self._branches:
            missing.append(at)
            at = at.parent
        branch = self._branches[at]
        for prefix in reversed(missing):
            branch = self._branches[prefix] = Branch(prefix, branch, next(self._serials))
        return branch

    def _count(self, branch: Branch, more: int) -> None:
        """Count so many more requests from here to the root."""
        at: Branch | None = branch
        while at is not None:
            above = at.above
            if above is not None and at.weight:
                above.leave(at)
            at.weight += more
            at.oldest = min(at.first, at.by_age[0][0] if at.by_age else inf)
            if above is None:
                return
            if at.weight:
                above.join(at)
            else:
                del self._branches[at.prefix]
            at = above
