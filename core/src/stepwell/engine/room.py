"""Pages for those who run: taken ahead while there are plenty, taken from somebody when they run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.copies import Copies
from stepwell.engine.stats import Cause, Counters
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft

AHEAD = 4
"""Pages that a decode row takes at once while there are plenty, which saves calls."""
PATIENCE = 64
"""Steps that a request without a page of a window lets others go first, before it takes from them."""


class RoomMaker:
    """`retract(seat, cause)` sends a running request back to the queue; `fail(job, why)` ends it."""

    def __init__(
        self,
        cache: Cache,
        batch: Batch,
        copies: Copies,
        decisions: Decisions,
        counters: Counters,
        max_retractions: int,
        retract: Callable[[Seat, Cause], None],
        fail: Callable[[Job, str], None],
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._copies = copies
        self._decisions = decisions
        self._counters = counters
        self._max_retractions = max_retractions
        self._retract = retract
        self._fail = fail
        self._page = cache.shape.page_size
        self._full, self._windows = cache.geometry.full, cache.geometry.windows
        self._relief = 0
        """Pages given up so far are free once this step has completed."""
        self._ahead: int | None = None
        self._moves = False
        """Somebody got pages while this plan was made."""
        self.short = False
        """Pages ran out while this plan was made."""

    def begin(self) -> None:
        """A new plan is made."""
        self.short = self._moves = False
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
            shorter = max((start + end) // 2, start + page) // page * page
            if shorter < end:
                end = shorter
            elif not self._relieve(seat):
                return start
        self._took(seat)
        return end

    def horizon(self, draft: Draft, steps: int) -> int:
        """Pages for so many decode steps of all rows, or for as many as there are without taking any from others.

        A window's pages are let go of again, but only after the last step: with many steps a few rows would take what
        others need, and what was kept for later.
        """
        if self._windows:
            available = self._cache.available()
            spare = min(available[group] for group in self._windows) // (2 * len(draft.decodes))
            reach = min(seat.until - seat.planned for seat in draft.decodes)
            steps = min(steps, max(reach, min(spare, AHEAD) * self._page))
        for seat in draft.decodes:
            if seat.planned + steps > seat.until:
                if self._cache.extend(seat.lease, seat.planned + steps):
                    self._took(seat)
                else:
                    steps = min(steps, seat.until - seat.planned)
        return steps

    def _took(self, seat: Seat) -> None:
        self._moves = True
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
        Windows move on with those who run: as long as anybody does, pages come free without taking any.
        """
        batch = self._batch
        self.short = True
        if batch.completed < self._relief or self._copies.rescuing:
            return self._wait()
        if self._windows and self._trim():
            if not batch.flying:
                return True
            self._relief = batch.launched
            return self._wait()
        if (batch.flying or self._copies.saving) and seat.short_since < 0:
            self._relief = seat.short_since = batch.launched
            return self._wait()
        if self._windows and self._moving(seat) and self._only_windows():
            if seat.short_since < 0:
                seat.short_since = batch.launched
            if batch.launched - seat.short_since < PATIENCE:
                return self._wait()
        running = tuple(other.job for other in batch.seats)
        if len(running) == 1:
            return self._alone(seat)
        victim = self._victim(running).seat
        assert victim is not None
        self._retract(victim, "pages")
        self._relief = batch.launched
        return not seat.ended

    def _wait(self) -> bool:
        self._counters.stalls += 1
        return False

    def _trim(self) -> bool:
        """Let go of what has moved out of windows since they were last trimmed; answers whether there was any."""
        freed = False
        for seat in self._batch.seats:
            before = list(seat.lease.trimmed)
            self._cache.trim(seat.lease, seat.done)
            if seat.lease.trimmed != before:
                self._batch.edited.append(seat)
                freed = True
        return freed

    def _moving(self, seat: Seat) -> bool:
        """Whether another request is computed by this plan or by a step in flight."""
        return (
            self._moves
            or self._batch.flying
            or any(
                other.planned < other.until for other in self._batch.decoding if other is not seat and not other.ended
            )
        )

    def _only_windows(self) -> bool:
        available = self._cache.available()
        return all(available[group] for group in self._full)

    def _alone(self, seat: Seat) -> bool:
        """Copies in flight may hold pages; else a request that fits by itself did not, which is a fault of ours."""
        if not (self._batch.flying or self._copies.saving):
            self._fail(seat.job, "device memory ran out for a request that should fit by itself")
        return self._wait()

    def _victim(self, running: Sequence[Job]) -> Job:
        """Nobody who gave way too often, as long as there is anybody else.

        Where all did, the latest gives way: the oldest always gets on, and so everybody does in the end.
        """
        candidates = tuple(job for job in running if job.retractions < self._max_retractions)
        if not candidates:
            return max(running, key=lambda job: job.order)
        return self._decisions.victim(candidates)
