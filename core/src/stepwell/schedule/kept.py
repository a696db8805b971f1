"""The groups of a ranked policy, kept between passes: only those are placed of whom something has changed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from numbers import Real

from stepwell.abc.ranked import Groups, Rank, RankedPolicy, placed
from stepwell.abc.schedule import WaitingView
from stepwell.schedule.job import Job
from stepwell.schedule.line import Line
from stepwell.schedule.view import View


class Kept:
    """Follows a line. Whatever the policy raises, or says that cannot be used, is raised; the next pass asks anew."""

    def __init__(self, policy: RankedPolicy, line: Line) -> None:
        self._policy = policy
        self._line = line
        self._groups = Groups()
        self._due: dict[int, Job] = {}
        """Who is to be placed, by rank of arrival."""
        self._gone: dict[int, Job] = {}
        """Who may still be in a group."""
        self._tuples: bool | None = None
        """Whether the policy's ranks are tuples; None before the first."""
        self._plain: type = type(None)
        """What its ranks are where they are numbers that need no further look; a tuple always does."""

    def add(self, job: Job) -> None:
        self._due[job.order] = job

    def remove(self, job: Job) -> None:
        self._due.pop(job.order, None)
        if self._groups.holds(job):
            self._gone[job.order] = job

    def order(self, view: View) -> Iterable[WaitingView]:
        """The policy's order over all that wait."""
        if self._policy.probes:
            self._due.update((job.order, job) for job in view.news() if job in self._line)
        if self._due or self._gone:
            self._place(view)
        return self._policy.merge(self._groups, view)

    def _place(self, view: View) -> None:
        there: list[tuple[Job, Hashable, Rank]] = []
        place = self._policy.place
        try:
            for job in self._due.values():
                name, rank = placed(place(job, view))
                hash(name)
                if rank.__class__ is not self._plain or rank != rank:
                    self._check(rank)
                there.append((job, name, rank))
        finally:
            self._update(there)

    def _update(self, placed: list[tuple[Job, Hashable, Rank]]) -> None:
        gone, self._gone = self._gone, {}
        try:
            self._groups.update(placed, gone.values())
        except Exception:
            self._groups = Groups()  # it is half done: start over
            self._due = {job.order: job for job in self._line}
            raise
        if len(placed) == len(self._due):
            self._due.clear()
        else:
            for job, _, _ in placed:
                del self._due[job.order]

    def _check(self, rank: Rank) -> None:
        """Ranks that do not compare would lose requests in the groups."""
        tuples = isinstance(rank, tuple)
        if self._tuples is None:
            self._tuples = tuples
        if tuples is not self._tuples:
            raise TypeError(f"the rank {rank!r} does not compare with those before")
        for number in rank if isinstance(rank, tuple) else (rank,):
            if not isinstance(number, Real):
                raise TypeError(f"the rank {rank!r} is no number")
            if number != number:
                raise ValueError(f"the rank {rank!r} does not compare")
        if not tuples:
            self._plain = type(rank)
