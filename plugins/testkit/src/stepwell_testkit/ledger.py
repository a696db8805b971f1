"""Core's side of an eviction policy: the segments of a tree as core would keep them, and who is a candidate."""

from __future__ import annotations

import random

from stepwell import EvictionPolicy, Segment, take_pages


class Ledger:
    """Tells a policy what happens and remembers which segments it may propose. Random, but equal for equal seeds."""

    def __init__(self, policy: EvictionPolicy, seed: int = 0) -> None:
        self.policy = policy
        self.dice = random.Random(seed)
        self.clock = 0
        self.listed: dict[Segment, int] = {}
        """The candidates, with the number of each."""
        self.gone: dict[Segment, int] = {}
        """Segments that live on without being candidates: they have a child."""
        self.proposals: list[list[int]] = []
        """By number, so that two runs can be compared."""
        self._made = 0

    # --- what core tells -----------------------------------------------------------------------------------------

    def insert(self, pages: int = 1, priority: int = 0) -> Segment:
        """A new leaf."""
        segment = Segment(pages, self._now(), priority)
        self.listed[segment] = self._number()
        self.policy.on_insert(segment)
        return segment

    def hit(self, segment: Segment, priority: int = 0) -> None:
        """A request uses a segment, a candidate or not; it is one afterwards."""
        segment.hits += 1
        segment.last_used = self._now()
        segment.priority = max(segment.priority, priority)
        self._list(segment)
        self.policy.on_hit(segment)

    def renew(self, segment: Segment) -> None:
        """Pages come back to a segment, a candidate or not: it is announced once more."""
        segment.pages += 1
        self._list(segment)
        self.policy.on_insert(segment)

    def remove(self, segment: Segment) -> None:
        """A segment is evicted for good, or its node goes though the segment was no candidate."""
        self.listed.pop(segment, None)
        self.gone.pop(segment, None)
        self.policy.on_remove(segment)

    def cover(self, segment: Segment) -> None:
        """A segment gains a child: no candidate while it has one, unless it is used."""
        self.gone[segment] = self.listed.pop(segment)
        self.policy.on_remove(segment)

    def expose(self, segment: Segment) -> None:
        """The last child of a segment goes."""
        self._list(segment)
        self.policy.on_expose(segment)

    def split(self, lower: Segment) -> Segment:
        """A segment loses its head to a new one above it."""
        head = lower.pages // 2
        upper = Segment(head, lower.started, lower.priority)
        upper.hits, upper.last_used = lower.hits, lower.last_used
        lower.pages -= head
        self.gone[upper] = self._number()
        self.policy.on_split(upper, lower)
        return upper

    def evict(self, pages: int) -> None:
        """Take pages as core does: from the tail of each proposal, the last one perhaps in part."""
        for segment in self.propose(pages):
            taken = min(pages, segment.pages)
            segment.pages -= taken
            pages -= taken
            if segment.pages == 0:
                self.remove(segment)

    def propose(self, pages: int) -> list[Segment]:
        """Ask for victims, twice, and hold the answer to the contract."""
        proposal = take_pages(self.policy.victims(pages), pages)
        assert take_pages(self.policy.victims(pages), pages) == proposal, "asked twice, it proposes differently"
        self._hold(proposal)
        asked = min(pages, sum(segment.pages for segment in self.listed))
        got = sum(segment.pages for segment in proposal)
        assert got >= asked, f"{got} pages are proposed where {asked} could be"
        self.proposals.append([self.listed[segment] for segment in proposal])
        return proposal

    def settle(self) -> None:
        """Every candidate can be proposed, each once."""
        total = sum(segment.pages for segment in self.listed)
        proposal = list(self.policy.victims(2 * total + 1))
        self._hold(proposal)
        left = len(self.listed) - len(proposal)
        assert left == 0, f"{left} of {len(self.listed)} candidates are never proposed"

    # --- a life --------------------------------------------------------------------------------------------------

    def live(self, turns: int) -> None:
        """Random turns of everything that can happen to segments."""
        acts = (
            self._any_insert,
            self._any_insert,
            self._any_hit,
            self._any_hit,
            self._any_return,
            self._any_renewal,
            self._any_cover,
            self._any_expose,
            self._any_split,
            self._any_removal,
            self._any_growth,
            self._any_eviction,
        )
        for turn in range(turns):
            self.dice.choice(acts)()
            if turn % 50 == 49:
                self.settle()
        self.settle()

    def _any_insert(self) -> None:
        self.insert(self.dice.randint(1, 6), self.dice.randrange(3))

    def _any_hit(self) -> None:
        if self.listed:
            self.hit(self._one(self.listed), self.dice.randrange(3))

    def _any_return(self) -> None:
        if self.gone:
            self.hit(self._one(self.gone))

    def _any_renewal(self) -> None:
        kind = self.listed if self.dice.random() < 0.5 else self.gone
        if kind:
            self.renew(self._one(kind))

    def _any_cover(self) -> None:
        if self.listed:
            self.cover(self._one(self.listed))

    def _any_expose(self) -> None:
        """Mostly of one that was covered; now and then of one that a hit has listed meanwhile."""
        kind = self.listed if self.dice.random() < 0.2 else self.gone
        if kind:
            self.expose(self._one(kind))

    def _any_split(self) -> None:
        long = {segment: n for known in (self.listed, self.gone) for segment, n in known.items() if segment.pages > 1}
        if long:
            self.split(self._one(long))

    def _any_removal(self) -> None:
        kind = self.listed if self.dice.random() < 0.7 else self.gone
        if kind:
            segment = self._one(kind)
            self.remove(segment)
            self.policy.on_remove(segment)  # a second call is no error

    def _any_growth(self) -> None:
        if self.listed:
            self._one(self.listed).pages += self.dice.randint(1, 4)

    def _any_eviction(self) -> None:
        self.evict(self.dice.randint(1, 12))

    def _one(self, among: dict[Segment, int]) -> Segment:
        return self.dice.choice(list(among))

    # --- keeping -------------------------------------------------------------------------------------------------

    def _hold(self, proposal: list[Segment]) -> None:
        strangers = [segment for segment in proposal if segment not in self.listed]
        assert not strangers, f"{len(strangers)} of {len(proposal)} proposals are no candidates"
        assert len(set(proposal)) == len(proposal), "a segment is proposed twice"

    def _list(self, segment: Segment) -> None:
        if segment not in self.listed:
            self.listed[segment] = self.gone.pop(segment)

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _now(self) -> int:
        self.clock += 1
        return self.clock
