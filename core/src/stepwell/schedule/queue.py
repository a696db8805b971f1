"""The waiting jobs, in arrival order, and the order in which they are tried.

A policy proposes the order; the queue holds its aging bound against every policy, and arrival order against a broken
one. What nobody reads of an order is not worked out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import chain

from stepwell.abc.ranked import RankedPolicy
from stepwell.abc.schedule import SchedulePolicy, WaitingView
from stepwell.said import said
from stepwell.schedule.job import Job
from stepwell.schedule.kept import Kept
from stepwell.schedule.line import Line
from stepwell.schedule.probes import leave
from stepwell.schedule.view import View


class Queue:
    """`fault(what)` is told of every answer of the policy that cannot be used."""

    def __init__(self, policy: SchedulePolicy, fault: Callable[[str], None]) -> None:
        self._policy = policy
        self._fault = fault
        self._line = Line()
        self._kept = Kept(policy, self._line) if isinstance(policy, RankedPolicy) else None
        self._left = set[Job]()
        """Who went since an order was last begun."""
        self._overdue = deque[Job]()
        """Who was passed too often since then."""
        self.cut = False
        """Whether the order was last read only so far because somebody tried before had been passed too often."""

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._line)

    def add(self, job: Job) -> None:
        """Put a job in its place by arrival; one that was retracted keeps the place it had."""
        self._line.add(job)
        if self._kept is not None:
            self._kept.add(job)

    def remove(self, job: Job) -> None:
        """Take a job out without admitting it."""
        self._line.remove(job)
        self._left.add(job)
        leave(job)
        if self._kept is not None:
            self._kept.remove(job)

    def admitted(self, job: Job) -> None:
        """Take an admitted job out, and count for those who came before it that it went before them."""
        self.remove(job)
        self._overdue += self._line.passed(job, self._bound())

    def ordered(self, view: View) -> Iterator[Job]:
        """The jobs in the order in which to try them: those that were passed too often first, by arrival.

        Whoever leaves the queue while the order is read does not come in the rest of it. Whoever is admitted meanwhile
        may be one too many for others: they are next, and where one of them was tried in vain, nobody else is (`cut`).
        """
        line, tried = self._line, set[Job]()
        overdue = self._overdue = deque[Job]()
        self.cut = False
        order = chain(tuple(line.aged), self._contained(view))
        while (job := overdue.popleft() if overdue else next(order, None)) is not None:
            if job.line is line and job not in tried:
                tried.add(job)
                yield job
                if overdue and any(passed in tried for passed in overdue):
                    self.cut = True
                    return

    def _contained(self, view: View) -> Iterator[Job]:
        """What the policy proposes, and by arrival whoever is left where it fails."""
        try:
            yield from self._proposed(view)
        except Exception as error:
            self._fault(f"order raised {said(error)}")
            yield from tuple(self._line)

    def _proposed(self, view: View) -> Iterator[Job]:
        """What the policy proposes, checked as far as it is read."""
        left = self._left = set[Job]()
        line, named = self._line, set[Job]()
        total = len(line)
        if not total:
            return
        for request in self._asked(view, total):
            if not isinstance(request, Job) or (request.line is not line and request not in left):
                raise ValueError(f"{said(request)} does not wait")
            if request in named:
                raise ValueError(f"{request.rid!r} is named twice")
            named.add(request)
            yield request
        if len(named) < total:
            raise ValueError(f"only {len(named)} of {total} requests are named")

    def _asked(self, view: View, total: int) -> Iterable[WaitingView]:
        if self._kept is not None:
            return self._kept.order(view)
        order = self._policy.order(tuple(self._line), view)  # the policy's own: no answer of it can lose a request
        if isinstance(order, Sized) and len(order) != total:
            raise ValueError(f"{len(order)} of {total} requests are named")
        return order

    def _bound(self) -> int:
        try:
            bound = self._policy.max_passes
            if isinstance(bound, int):
                return bound
            self._fault(f"max_passes is {said(bound)}, which is no number")
        except Exception as error:
            self._fault(f"max_passes raised {said(error)}")
        return SchedulePolicy.max_passes
