"""Pages and a slot for a waiting request: given to it, or only reckoned.

Both go by the same arithmetic, and by that of the entry: what was let into the queue fits into an idle engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stepwell.cache.cache import Cache, Lease
from stepwell.engine.batch import Batch
from stepwell.schedule.admission import Room, chunk_end
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.view import View


class Seating:
    """A request gets pages up to the end of its prompt where every group keeps all of it anyway."""

    def __init__(self, cache: Cache, batch: Batch, view: View) -> None:
        self._cache = cache
        self._batch = batch
        self._view = view
        self._page = cache.shape.page_size
        self._windowed = bool(cache.geometry.windows)

    def sit(self, job: Job, budget: int, room: Room) -> Seat | None:
        """Seat a request that fits now; a window may begin with a shorter chunk than `budget` has tokens for."""
        if room.rules_out(job, self._view.cached(job)):
            return None
        span = self._span(job, budget)
        lease = None
        while lease is None and span >= min(self._page, job.length):
            lease = self._lease(job, span, room)
            shorter = max(span // 2, self._page) // self._page * self._page
            span = shorter if self._windowed and shorter < span else 0
        return None if lease is None else self._batch.sit(job, lease)

    def would_sit(self, job: Job, budget: int, room: Room, without: Sequence[Seat]) -> bool:
        """Whether it would fit if some did not run, with whom `room` does not reckon, and steps in flight had ended."""
        self._view.cached(job)
        upto = partial(chunk_end, target=job.length, budget=self._span(job, budget), page=self._page)
        return self._cache.would_admit(
            job.request.namespace,
            job.tokens,
            upto,
            load=job.load,
            reserve=room.reserve(job, upto(job.probed)),
            without=[seat.lease for seat in without],
        )

    def touch(self, job: Job) -> None:
        """What is cached of it is used, as it were: who passes it evicts other things first."""
        if self._view.cached(job):
            self._cache.match(job.request.namespace, job.tokens)

    def _span(self, job: Job, budget: int) -> int:
        return min(budget, max(job.length, self._page)) if self._windowed else job.length

    def _lease(self, job: Job, span: int, room: Room) -> Lease | None:
        upto = partial(chunk_end, target=job.length, budget=span, page=self._page)
        return self._cache.admit(
            job.request.namespace,
            job.tokens,
            upto,
            load=job.load,
            reserve=room.reserve(job, upto(job.probed)),
            priority=job.priority,
            fetched=job.fetched,
            fetched_from=job.fetched_from,
        )
