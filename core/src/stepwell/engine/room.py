"""Pages for those who run: taken ahead while there are plenty, taken from somebody when they run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.abc.schedule import SchedulePolicy
from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.stats import Counters
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft
from stepwell.schedule.view import View

AHEAD = 4
"""Pages that a decode row takes at once while there are plenty, which saves calls."""


class RoomMaker:
    """`retract(seat)` sends a running request back to the queue; `fail(job, why)` ends it."""

    def __init__(
        self,
        cache: Cache,
        batch: Batch,
        policy: SchedulePolicy,
        view: View,
        counters: Counters,
        retract: Callable[[Seat], None],
        fail: Callable[[Job, str], None],
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._policy = policy
        self._view = view
        self._counters = counters
        self._retract = retract
        self._fail = fail
        self._page = cache.shape.page_size
        self._relief = 0
        """Pages given up so far are free once this step has completed."""
        self._ahead: int | None = None
        self.short = False
        """Pages ran out while this plan was made."""

    def begin(self) -> None:
        """A new plan is made."""
        self.short = False
        self._ahead = None

    def row(self, seat: Seat) -> bool:
        """Whether a decode row has a page to write to, made where it can be."""
        at, last = seat.planned, seat.last
        if seat.ended or at >= last:
            return False
        if not self._cache.extend(seat.lease, min(last, at + self._tokens_ahead())):
            while not self._cache.extend(seat.lease, at + 1):
                if not self._relieve(seat):
                    return False
        self._took(seat)
        return True

    def chunk(self, seat: Seat, end: int) -> int:
        """Pages for a chunk up to `end`, or for a shorter one; answers where it ends."""
        start, page = seat.planned, self._page
        while end > seat.lease.capacity and not self._cache.extend(seat.lease, end):
            shorter = (start + end) // 2 // page * page
            if shorter > start:
                end = shorter
            elif not self._relieve(seat):
                return start
        self._took(seat)
        return end

    def horizon(self, draft: Draft, steps: int) -> int:
        """Pages for so many decode steps of all rows, or for as many as there are without taking any from others."""
        for seat in draft.decodes:
            if seat.planned + steps > seat.until:
                if self._cache.extend(seat.lease, seat.planned + steps):
                    self._took(seat)
                else:
                    steps = min(steps, seat.until - seat.planned)
        return steps

    def _took(self, seat: Seat) -> None:
        seat.short_since = -1
        seat.until = min(seat.lease.capacity, seat.last)
        self._batch.edited.append(seat)

    def _tokens_ahead(self) -> int:
        if self._ahead is None:
            plenty = min(self._cache.available()) > 16 * AHEAD * len(self._batch.decoding)
            self._ahead = AHEAD * self._page if plenty else 1
        return self._ahead

    # --- pages ran out -----------------------------------------------------------------------------------------

    def _relieve(self, seat: Seat) -> bool:
        """Pages ran out for a running request. True: try again now; False: it sits this step out or has to go.

        Pages given up while steps are in flight come free only when those have completed. So the request first waits
        for that, and only then takes pages from somebody; and waits for that to take effect before it takes more.
        """
        batch = self._batch
        self.short = True
        if batch.completed < self._relief:
            self._counters.stalls += 1
            return False
        if batch.flying and seat.short_since < 0:
            self._relief = seat.short_since = batch.launched
            self._counters.stalls += 1
            return False
        running = tuple(other.job for other in batch.seats)
        if len(running) == 1:
            return self._alone(seat)
        victim = self._victim(running).seat
        assert victim is not None
        self._retract(victim)
        self._relief = batch.launched
        return not seat.ended

    def _alone(self, seat: Seat) -> bool:
        """Copies in flight may hold pages; else a request that fits by itself did not, which is a fault of ours."""
        self._counters.stalls += 1
        if not self._batch.flying:
            self._fail(seat.job, "device memory ran out for a request that should fit by itself")
        return False

    def _victim(self, running: Sequence[Job]) -> Job:
        try:
            victim = self._policy.victim(running, self._view)
            return next(job for job in running if job is victim)
        except StopIteration:
            self._counters.fault("victim is not a running request")
        except Exception as error:
            self._counters.fault(f"victim raised {error!r}")
        return max(running, key=lambda job: (-job.priority, job.order))
