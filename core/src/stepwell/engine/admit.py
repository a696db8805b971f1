"""Who runs next: the waiting requests, tried in the policy's order while budget, slots and pages last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.copies import Copies
from stepwell.engine.fetches import Fetches
from stepwell.engine.stats import Counters
from stepwell.schedule.admission import Forecast, Room, chunk_end
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft
from stepwell.schedule.queue import Queue
from stepwell.schedule.view import View


class Admission:
    """Passes over the queue; a pass is made only when something happened that may let somebody in.

    `look_past`: requests that do not fit now and that later ones may pass, in one pass. `look_at`: requests that a pass
    looks at. `reserve`: where the forecast starts. `never(job)` ends a request that not even an idle engine can hold.
    """

    def __init__(
        self,
        cache: Cache,
        queue: Queue,
        batch: Batch,
        copies: Copies,
        fetches: Fetches | None,
        view: View,
        counters: Counters,
        look_past: int,
        look_at: int,
        reserve: float,
        never: Callable[[Job], None],
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._batch = batch
        self._copies = copies
        self._fetches = fetches
        self._view = view
        self._counters = counters
        self._look_past = look_past
        self._look_at = look_at
        self._never = never
        self._page = cache.shape.page_size
        self._windowed = bool(cache.geometry.windows)
        self._news = True
        self._news_at = 0
        self.forecast = Forecast(reserve)
        self.held_since: float | None = None
        """Since when somebody could run but for a fetch."""

    def stir(self) -> None:
        """Somebody may fit now, or when the pages given up now are free: once the steps in flight have completed."""
        self._news = True
        self._news_at = self._batch.launched

    def landed(self, number: int) -> None:
        """A step has completed."""
        if number == self._news_at or not any(self._batch.seats):
            self._news = True

    @property
    def settled(self) -> bool:
        """Whether nobody who waits can start before something happens."""
        return not self._queue or not (self._news or self.held_since is not None)

    def run(self, draft: Draft, budget: int, now: float) -> int:
        """Admit into a draft with `budget` tokens of prefill left; answers what is left of it then."""
        held_since, self.held_since = self.held_since, None
        if not self._queue or not (self._news or held_since is not None):
            return budget
        if budget < self._page or not self._batch.slots:
            return budget
        self._news = False
        admitted: list[Job] = []
        misfits = 0
        room = Room(self._cache, self.forecast.share, self._batch.seats)
        for job in islice(self._queue.ordered(self._view), self._look_at):
            if self._fetches and self._fetches.holds(job, now):
                self.held_since = now if held_since is None else held_since
                continue
            if self._follows(job):
                continue
            seat = self._seat(job, budget, room, now)
            if seat is None:
                misfits += 1
                if not (admitted or self._moves()):
                    self._never(job)
                if job.aged or misfits > self._look_past:
                    break
                continue
            admitted.append(job)
            room.add(seat)
            end = min(chunk_end(seat.planned, seat.target, budget, self._page), seat.lease.capacity)
            draft.admit(seat, end)
            budget -= end - seat.planned
            if budget < self._page or not self._batch.slots:
                self._news = True
                break
        self._queue.admitted(admitted)
        return budget

    def _moves(self) -> bool:
        """Whether pages may come free by themselves."""
        return self._batch.flying or self._copies.saving > 0 or any(self._batch.seats)

    def _follows(self, job: Job) -> bool:
        """Whether a running request is computing what this one would compute first."""
        if self._batch.leaders.leader(job) is None:
            return False
        self._counters.follows += not job.followed
        job.followed = True
        return True

    def _seat(self, job: Job, budget: int, room: Room, now: float) -> Seat | None:
        """Give a job pages and a slot: up to the end of its prompt where every group keeps all of it anyway."""
        if room.rules_out(job, self._view.cached(job)):
            return None
        span = min(budget, max(job.length, self._page)) if self._windowed else job.length
        lease = None
        while lease is None and span >= min(self._page, job.length):
            upto = partial(chunk_end, target=job.length, budget=span, page=self._page)
            lease = self._cache.admit(
                job.request.namespace,
                job.tokens,
                upto,
                load=job.load,
                reserve=room.reserve(job, upto(job.probed)),
                priority=job.priority,
                fetched=job.fetched,
                fetched_from=job.fetched_from,
            )
            shorter = max(span // 2, self._page) // self._page * self._page
            span = shorter if self._windowed and shorter < span else 0
        if lease is None:
            return None
        if self._fetches:
            self._fetches.forget(job, now)
        self._counters.admissions += 1
        if job.cached is not None:
            self._counters.resumed_tokens += lease.cached.total
        return self._batch.sit(job, lease)
