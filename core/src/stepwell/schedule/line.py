"""Who waits, by arrival, and how often each was passed; to count that takes a few looks, however many wait."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepwell.schedule.job import Job


class Line:
    """Jobs by their rank of arrival; one that comes back takes the place it had."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._orders = array("q")
        self._passed = array("q")
        """How often each was passed; the job itself only knows once it is out."""
        self._young = bytearray()
        self.aged: list[Job] = []
        """Those that were passed too often, by arrival."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job.line is self

    def add(self, job: Job) -> None:
        at = bisect_left(self._orders, job.order)
        self._jobs.insert(at, job)
        self._orders.insert(at, job.order)
        self._passed.insert(at, job.passed)
        self._young.insert(at, not job.aged)
        job.line = self
        if job.aged:
            insort(self.aged, job, key=_order)

    def remove(self, job: Job) -> None:
        at = self._at(job)
        job.line, job.passed = None, self._passed[at]
        del self._jobs[at], self._orders[at], self._passed[at], self._young[at]
        if job.aged:
            del self.aged[bisect_left(self.aged, job.order, key=_order)]

    def passes(self, job: Job) -> int:
        """How often later ones went before a job."""
        return self._passed[self._at(job)]

    def passed(self, job: Job, bound: int) -> list[Job]:
        """A job that is out of it by now went before those who came earlier; answers for whom that was once too often.

        `bound`: how often is too often.
        """
        last = self._at(job)
        counts: npt.NDArray[np.int64] = np.frombuffer(self._passed, dtype=np.int64)[:last]
        counts += 1
        young = np.frombuffer(self._young, dtype=np.bool_)[:last]
        overdue = [self._jobs[at] for at in np.flatnonzero(young & (counts >= bound)).tolist()]
        for passed in overdue:
            passed.aged = True
            self._young[self._at(passed)] = False
            insort(self.aged, passed, key=_order)
        return overdue

    def _at(self, job: Job) -> int:
        return bisect_left(self._orders, job.order)


def _order(job: Job) -> int:
    return job.order
