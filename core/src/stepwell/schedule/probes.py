"""How much is cached of those who wait, kept while the tree changes.

Where the walk of a request ends is remembered as a spot of the tree. Its answer can only change where the spot is: more
may be found where the tree goes on from there with the next page of the request, less where the spot, or a window's
page above it, goes. So the tree tells what happens to it, and only those concerned are asked about again, when somebody
wants to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.cache.cache import Cache
from stepwell.cache.follow import Follower
from stepwell.cache.match import above_bare, last_of, longest
from stepwell.cache.node import NO_PAGE, Node, Places
from stepwell.schedule.job import Job
from stepwell.types import TOKEN_BYTES

FEW = 8
"""Of so many it is looked up one by one how they go on."""
GLANCE = 256
"""Bytes of a next page by which many are told apart before they are compared."""

Place = Node | bytes
"""A node, or the namespace whose root it is: roots come and go."""


class Spot:
    """Jobs of which the tree has the same prefix: `at` bytes, down to a place."""

    __slots__ = ("at", "jobs", "nexts", "place", "probes")

    def __init__(self, probes: Probes, place: Place, at: int) -> None:
        self.probes = probes
        self.place = place
        self.at = at
        self.jobs: dict[Job, None] = {}
        self.nexts: dict[bytes, dict[Job, None]] | None = None
        """The jobs by how they go on; not before somebody asks."""

    def add(self, job: Job) -> None:
        self.jobs[job] = None
        job.spot = self
        if self.nexts is not None:
            self.nexts.setdefault(self._glance(job.tokens, self.at), {})[job] = None

    def discard(self, job: Job) -> None:
        del self.jobs[job]
        job.spot = None
        if self.nexts is not None:
            glance = self._glance(job.tokens, self.at)
            alike = self.nexts[glance]
            del alike[job]
            if not alike:
                del self.nexts[glance]

    def who_goes_on(self, edge: bytes) -> list[Job]:
        """Those whose next page is the first of an edge."""
        first, at = edge[: self.probes.step], self.at
        alike: Iterable[Job] = self.jobs
        if self.nexts is not None or len(self.jobs) > FEW:
            alike = self._by_next().get(self._glance(edge, 0), ())
        return [job for job in alike if job.tokens.startswith(first, at)]

    def _by_next(self) -> dict[bytes, dict[Job, None]]:
        if self.nexts is not None:
            return self.nexts
        # Thousands may wait at one spot when it is asked for the first time.
        nexts = self.nexts = {}
        at, end = self.at, self.at + min(self.probes.step, GLANCE)
        for job in self.jobs:
            glance = job.tokens[at:end]
            if glance in nexts:
                nexts[glance][job] = None
            else:
                nexts[glance] = {job: None}
        return nexts

    def _glance(self, tokens: bytes, at: int) -> bytes:
        return tokens[at : at + min(self.probes.step, GLANCE)]


class Shared:
    """A cached prefix as policies see it: stands for a node, and lets nobody touch it."""

    __slots__ = ("_known", "_node")

    def __init__(self, node: Node, known: dict[Node, Shared]) -> None:
        self._node = node
        self._known = known

    @property
    def parent(self) -> Shared | None:
        """The shorter prefix that it goes on from."""
        return share(self._node.parent, self._known)


def share(node: Node | None, known: dict[Node, Shared]) -> Shared | None:
    """What stands for a node; nothing does for a root, or for what is not there any more."""
    if node is None or node.parent is None:
        return None
    shared = known.get(node)
    if shared is None:
        shared = known[node] = Shared(node, known)
    return shared


@dataclass(slots=True)
class _Moved:
    """What happened to window pages of a node: some came, or some between two pages of the prompt went."""

    came: bool = False
    low: int = NO_PAGE
    high: int = -1


class Probes(Follower):
    """Answers about jobs, from memory where nothing has happened to them. `leave` lets go of one that waits no more."""

    def __init__(self, cache: Cache) -> None:
        self._geometry = cache.geometry
        self.step = cache.geometry.step
        self._windowed = bool(cache.geometry.windows)
        self._index = cache.follow(self)
        self._spots: dict[Place, dict[int, Spot]] = {}
        """By how many bytes of the prompt are known there."""
        self._shared: dict[Node, Shared] = {}
        self._news: list[Job] | None = None
        """Who was marked; nobody writes it up before the first asks."""
        self._lit: dict[Node, dict[Node, None]] = {}
        """With windows: of each node the children that have spots, or others that have, below them."""
        self._moved: dict[Node, _Moved] = {}

    # region: answers

    def cached(self, job: Job) -> int:
        """Tokens of a waiting job's prompt that device or host hold, as `Cache.probe` tells them."""
        if self._moved:
            self._settle()
        if job.spot is None:
            self._probe(job)
        return job.probed

    def prefix(self, job: Job) -> Shared | None:
        """The longest cached prefix of a waiting job."""
        length = self.cached(job) // self._geometry.page
        place = job.spot.place if job.spot is not None else b""
        if isinstance(place, bytes) or not length:
            return None
        return share(last_of(place, length), self._shared)

    def news(self) -> list[Job]:
        """Jobs about which something may have changed since this was last asked; perhaps twice, or gone since."""
        if self._moved:
            self._settle()
        news, self._news = self._news, []
        return news or []

    def leave(self, job: Job) -> None:
        """It waits no longer."""
        spot = job.spot
        if spot is None:
            return
        spot.discard(job)
        if not spot.jobs:
            table = self._spots[spot.place]
            del table[spot.at]
            if not table:
                del self._spots[spot.place]

    def _probe(self, job: Job) -> None:
        namespace = job.request.namespace
        place: Place = namespace
        root, at, length = self._index.roots.get(namespace), 0, 0
        if root is not None:
            tokens = job.tokens
            _, node, at, inside = self._index.walk(root, tokens)
            if inside is not None:
                node = inside
            length = at // self.step if at < len(tokens) else self._pages(job, at)
            if node is not root:
                place = node
            if self._windowed:
                length = self._usable(node, length)
        job.probed = length * self._geometry.page
        table = self._spots.get(place)
        if table is None:
            table = self._spots[place] = {}
            if self._windowed:
                self._light(place)
        spot = table.get(at)
        if spot is None:
            spot = table[at] = Spot(self, place, at)
        spot.add(job)

    def _usable(self, node: Node, length: int) -> int:
        """The longest length with which windows are there, too."""
        if node.bare and self._geometry.windowed:
            length, node = above_bare(node, length)
        return longest(self._geometry, node, length, True)[0]

    def _pages(self, job: Job, at: int) -> int:
        """Pages that a request may use of `at` bytes: its last token is computed in any case."""
        return min(at, max(0, len(job.tokens) - TOKEN_BYTES)) // self.step

    # endregion

    # region: the tree tells

    def grew(self, node: Node, edge: bytes) -> None:
        table = self._spots.get(node if node.parent is not None else node.digests)
        spot = table.get(node.end) if table else None
        if spot is not None:
            self._mark(spot.who_goes_on(edge))

    def split(self, upper: Node, node: Node) -> None:
        cut = upper.end
        table = self._spots.get(node, {})
        if self._windowed:
            self._split_lit(upper, node)
        if node in self._shared:
            self._rename(node, cut)
        above = {at: spot for at, spot in table.items() if at <= cut}
        if not above:
            return
        for at, spot in above.items():
            spot.place = upper
            del table[at]
        self._spots[upper] = above
        if not table:
            del self._spots[node]

    def shrank(self, node: Node) -> None:
        table = self._spots.get(node, {})
        for spot in [spot for at, spot in table.items() if at > node.end]:
            self._mark(list(spot.jobs))

    def gone(self, node: Node) -> None:
        table = self._spots.get(node)
        for spot in list(table.values()) if table else ():
            self._mark(list(spot.jobs))
        if self._shared:
            self._shared.pop(node, None)
        if self._windowed:
            self._moved.pop(node, None)
            self._lit.pop(node, None)
            if node.parent is not None:
                self._lit.get(node.parent, {}).pop(node, None)

    def came(self, node: Node) -> None:
        if node in self._spots or node in self._lit:
            self._moved.setdefault(node, _Moved()).came = True

    def went(self, node: Node, places: Places) -> None:
        if node in self._spots or node in self._lit:
            moved = self._moved.setdefault(node, _Moved())
            moved.low = min(moved.low, node.first + int(places[0]))
            moved.high = max(moved.high, node.first + int(places[-1]))

    # endregion

    # region: marks

    def _mark(self, jobs: Iterable[Job]) -> None:
        """Their answers do not hold any more."""
        for job in jobs:
            self.leave(job)
            if self._news is not None:
                self._news.append(job)

    def _rename(self, node: Node, cut: int) -> None:
        """The prefix of some has another name, although it is as long as before."""
        if self._news is None:
            return
        # Whose last token would be the first of a page behind the cut has its prefix before it, too.
        reach = cut + self.step
        for here in self._below(node) if self._windowed else (node,):
            for at, spot in self._spots.get(here, {}).items():
                if self._windowed or at <= reach:
                    self._news.extend(spot.jobs)

    def _settle(self) -> None:
        """Mark those whose windows have, or lack, other pages than before."""
        moved, self._moved = self._moved, {}
        for node, what in moved.items():
            for here in self._below(node):
                for spot in list(self._spots.get(here, {}).values()):
                    self._mark([job for job in spot.jobs if self._concerns(job, spot.at, what)])

    def _concerns(self, job: Job, at: int, what: _Moved) -> bool:
        length = job.probed // self._geometry.page
        if what.came and length < self._pages(job, at):
            return True
        return what.low < length and any(start_of(length) <= what.high for _, start_of in self._geometry.plan)

    # endregion

    # region: where somebody waits below

    def _light(self, place: Place) -> None:
        if isinstance(place, bytes):
            return
        node, above = place, place.parent
        while above is not None and above.parent is not None:
            lit = self._lit.setdefault(above, {})
            if node in lit:
                return
            lit[node] = None
            node, above = above, above.parent

    def _split_lit(self, upper: Node, node: Node) -> None:
        if node in self._spots or node in self._lit:
            assert upper.parent is not None
            lit = self._lit.get(upper.parent)
            if lit is not None and lit.pop(node, node) is None:
                lit[upper] = None
            self._lit[upper] = {node: None}
        if node in self._moved:
            what = self._moved[node]
            self._moved[upper] = _Moved(what.came, what.low, what.high)

    def _below(self, node: Node) -> list[Node]:
        """A node, and those below it where somebody may wait."""
        found = [node]
        for here in found:
            found.extend(self._lit.get(here, ()))
        return found

    # endregion


def leave(job: Job) -> None:
    """A job waits no longer."""
    if job.spot is not None:
        job.spot.probes.leave(job)
