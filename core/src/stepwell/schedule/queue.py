"""The waiting jobs, in arrival order, and the order in which they are tried.

A policy proposes the order; the queue holds its aging bound against every policy, and arrival order against a broken
one.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from stepwell.abc.schedule import SchedulePolicy
from stepwell.schedule.job import Job
from stepwell.schedule.view import View

_by_order = attrgetter("order")


class Queue:
    """`fault(what)` is told of every answer of the policy that cannot be used."""

    def __init__(self, policy: SchedulePolicy, fault: Callable[[str], None]) -> None:
        self._policy = policy
        self._fault = fault
        self._jobs: list[Job] = []
        self._aged = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def add(self, job: Job) -> None:
        """Put a job in its place by arrival; one that was retracted keeps the place it had."""
        self._aged += job.aged
        if self._jobs and self._jobs[-1].order > job.order:
            insort(self._jobs, job, key=_by_order)
        else:
            self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """Take a job out without admitting it."""
        self._jobs.remove(job)
        self._aged -= job.aged

    def ordered(self, view: View) -> Sequence[Job]:
        """The jobs in the order in which to try them: those that were passed too often first, by arrival."""
        order = self._proposed(view)
        if not self._aged:
            return order
        return [job for job in self._jobs if job.aged] + [job for job in order if not job.aged]

    def admitted(self, jobs: Sequence[Job]) -> None:
        """Take admitted jobs out, and count for each that stays how many later ones went before it."""
        if not jobs:
            return
        for job in jobs:
            self.remove(job)
        later = sorted((job.order for job in jobs), reverse=True)
        bound = self._bound()
        for job in self._jobs:
            while later and later[-1] < job.order:
                later.pop()
            if not later:
                return
            job.passes += len(later)
            if job.passes >= bound and not job.aged:
                job.aged = True
                self._aged += 1

    def _bound(self) -> int:
        bound = self._policy.max_passes
        if isinstance(bound, int):
            return bound
        self._fault(f"max_passes is {bound!r}, which is no number")
        return SchedulePolicy.max_passes

    def _proposed(self, view: View) -> Sequence[Job]:
        jobs = tuple(self._jobs)  # the policy's own: no answer of it can lose a request
        try:
            order = self._policy.order(jobs, view)
            if order is jobs:
                return jobs
            proposed = list(order)
        except Exception as error:
            self._fault(f"order raised {error!r}")
            return jobs
        if len(proposed) != len(jobs) or set(map(id, proposed)) != set(map(id, jobs)):
            self._fault("order is not a permutation of the waiting requests")
            return jobs
        return proposed  # type: ignore[return-value]  # the same objects, by the check above
