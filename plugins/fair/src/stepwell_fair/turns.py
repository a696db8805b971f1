"""Lines in turn: of the most urgent, the tenant served least goes first, and what it is given counts at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from typing import cast

from stepwell import Groups, ScheduleView, WaitingView
from stepwell_fair.line import Line, Turn, urgency
from stepwell_fair.service import Service

Name = tuple[int, str, int]
"""A group: priority, tenant, size."""


class Lines:
    """All lines, kept as the groups change."""

    def __init__(self) -> None:
        self._groups: Groups | None = None
        self._lines: dict[tuple[int, str], Line] = {}
        self._by_age: dict[int, list[tuple[int, str]]] = {}
        """By priority: rank of arrival of a line's oldest request, and its tenant."""

    def follow(self, groups: Groups) -> None:
        """Bring the lines up to date with what has changed in the groups."""
        names = groups.news()
        if groups is not self._groups:
            self._groups, self._lines, self._by_age = groups, {}, {}
            names = set(groups)
        for priority, tenant, size in cast("set[Name]", names):
            line = self._lines.setdefault((priority, tenant), Line(priority, tenant))
            before = line.oldest
            line.change(size, groups.get((priority, tenant, size)))
            self._move(line, before)

    def in_turn(
        self, view: ScheduleView, served: dict[str, float], service: Service, age_s: float
    ) -> Iterator[WaitingView]:
        """All requests in order. Costs what is read of it, and a look at each tenant that has been served."""
        contest = Contest(served, view.now, age_s)
        known = frozenset(contest.served)
        for priority, ages in self._by_age.items():
            for tenant in known:
                if line := self._lines.get((priority, tenant)):
                    contest.enter(iter((line,)))
            contest.enter(self._strangers(priority, ages, known))
        idle = not view.running
        for request in contest:
            if idle:  # core admits then without asking
                service.tried(request, view)
            yield request
            tenant = request.tenant or ""
            contest.serve(tenant, (request.length + view.expected(request)) / service.weight(tenant))

    def _strangers(self, priority: int, ages: list[tuple[int, str]], known: Container[str]) -> Iterator[Line]:
        """Lines of a priority whose tenants have been served nothing, by arrival."""
        return (self._lines[priority, tenant] for _, tenant in ages if tenant not in known)

    def _move(self, line: Line, before: WaitingView | None) -> None:
        ages = self._by_age.setdefault(line.priority, [])
        if before is not None:
            del ages[bisect_left(ages, (before.order, line.tenant))]
        if line.oldest is not None:
            insort(ages, (line.oldest.order, line.tenant))
            return
        del self._lines[line.priority, line.tenant]
        if not ages:
            del self._by_age[line.priority]


class Contest(Iterable[WaitingView]):
    """One pass: lines stand by urgency, then by what their tenants have been `served`, then by arrival."""

    def __init__(self, served: dict[str, float], now: float, age_s: float) -> None:
        self.served = served
        self._now = now
        self._age_s = age_s
        self._stands: list[tuple[int, float, int, Stand]] = []

    def enter(self, lines: Iterator[Line]) -> None:
        """Lines of tenants that stand alike but for their arrival, by that; each enters when the one before has."""
        for line in lines:
            first = line.oldest
            assert first is not None
            self._put(-urgency(first, self._now, self._age_s), first, Stand(line, lines))
            if line.tenant not in self.served:
                return

    def serve(self, tenant: str, tokens: float) -> None:
        """A tenant has been given something to be served, so much by its weight."""
        self.served[tenant] = self.served.get(tenant, 0.0) + tokens

    def __iter__(self) -> Iterator[WaitingView]:
        while self._stands:
            urgent, served, order, stand = heappop(self._stands)
            if stand.behind is not None:
                lines, stand.behind = stand.behind, None
                self.enter(lines)
            now_served = self.served.get(stand.line.tenant, 0.0)
            if now_served > served:  # by another line of the tenant
                heappush(self._stands, (urgent, now_served, order, stand))
                continue
            if stand.turns is None:
                stand.turns = stand.line.turns(self._now, self._age_s)
                stand.turn = next(stand.turns)
            assert stand.turn is not None
            yield stand.turn[-1]
            stand.turn = next(stand.turns, None)
            if stand.turn is not None:
                self._put(stand.turn[0], stand.turn[-1], stand)

    def _put(self, urgent: int, request: WaitingView, stand: Stand) -> None:
        heappush(self._stands, (urgent, self.served.get(stand.line.tenant, 0.0), request.order, stand))


class Stand:
    """A line in a contest. `behind`: the lines that enter once this one's turn has come."""

    __slots__ = ("behind", "line", "turn", "turns")

    def __init__(self, line: Line, behind: Iterator[Line]) -> None:
        self.line = line
        self.behind: Iterator[Line] | None = behind
        self.turns: Iterator[Turn] | None = None
        self.turn: Turn | None = None
        """Whose turn it is in the line."""
