"""Who runs next: the waiting requests, tried in the policy's order while budget, slots and pages last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.copies import Copies
from stepwell.engine.fetches import Fetches
from stepwell.engine.preempt import Preemption
from stepwell.engine.seating import Seating
from stepwell.engine.stats import Cause, Counters, Reason
from stepwell.schedule.admission import Room, chunk_end
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.forecast import Forecast
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft
from stepwell.schedule.queue import Queue
from stepwell.schedule.view import View


@dataclass(slots=True)
class _Pass:
    """One pass over the queue: what it admits into, what is left, and what came of it so far."""

    draft: Draft
    budget: int
    now: float
    room: Room
    claimant: Job | None
    held_since: float | None
    admitted: bool = False
    misfits: int = 0
    lost: list[Job] = field(default_factory=list)
    """Not even an idle engine can hold them."""
    victims: Sequence[Seat] = ()
    """Who gives way to the last one tried."""


class Admission:
    """Passes over the queue; a pass is made only when something happened that may let somebody in.

    `look_at`: requests that a pass looks at. `never(job)` ends a request that not even an idle engine can hold;
    `retract(seat, cause)` sends a running one back to the queue.
    """

    def __init__(
        self,
        cache: Cache,
        queue: Queue,
        batch: Batch,
        copies: Copies,
        fetches: Fetches | None,
        view: View,
        decisions: Decisions,
        forecast: Forecast,
        counters: Counters,
        look_at: int,
        max_retractions: int,
        never: Callable[[Job], None],
        retract: Callable[[Seat, Cause], None],
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._batch = batch
        self._copies = copies
        self._fetches = fetches
        self._view = view
        self._decisions = decisions
        self._forecast = forecast
        self._counters = counters
        self._look_at = look_at
        self._never = never
        self._retract = retract
        self._page = cache.shape.page_size
        self._seating = Seating(cache, batch, view)
        self._preemption = Preemption(batch, copies, self._seating, decisions, max_retractions)
        self._news = True
        self._news_at = 0
        self._full = False
        """All slots were taken, and whoever could have given way for one was asked for, when the last pass was made."""
        self._refused = False
        """The policy held somebody back in the last pass."""
        self.made_way = False
        """Somebody gave way for another while this plan was made."""
        self.held_since: float | None = None
        """Since when somebody could run but for a fetch."""

    def stir(self) -> None:
        """Somebody may fit now, or when the pages given up now are free: once the steps in flight have completed."""
        self._news = True
        self._full = False
        self._news_at = self._batch.launched

    def landed(self, number: int) -> None:
        """A step has completed."""
        if number == self._news_at or self._refused or not any(self._batch.seats):
            self._news = True
            self._full = False

    def gone(self, job: Job) -> None:
        """A request has ended."""
        self._preemption.settle(job)

    @property
    def settled(self) -> bool:
        """Whether nobody who waits can start before something happens."""
        return not self._queue or not (self._news or self.held_since is not None)

    def begin(self) -> None:
        """A new plan is made."""
        self.made_way = False

    def run(self, draft: Draft, budget: int, now: float) -> int:
        """Admit into a draft with `budget` tokens of prefill left; answers what is left of it then."""
        held_since, self.held_since = self.held_since, None
        if not self._queue or not (self._news or held_since is not None):
            return budget
        if budget < self._page or not (self._batch.slots or (self._decisions.preempts and not self._full)):
            return budget
        self._news = self._refused = False
        room = Room(self._cache, self._forecast, self._batch.seats)
        at = _Pass(draft, budget, now, room, self._preemption.claimant, held_since)
        candidates = self._candidates(at.claimant)
        for job in candidates:
            if not self._try(at, job):
                break
        else:
            self._news = at.admitted and (self._queue.cut or len(self._queue) > self._look_at)
        if (at.victims or self._preemption.claimant) and (behind := next(candidates, None)):
            self._counters.skipped("claim", behind)
        for job in at.lost:
            self._never(job)
        if at.victims:
            self._make_way(at, job)
        return at.budget

    def _try(self, at: _Pass, job: Job) -> bool:
        """Admit a request where it fits; False where the pass ends with it."""
        held = self._held(at, job)
        if held is not None:
            self._counters.skipped(held, job)
            return held != "budget" and job is not at.claimant
        if self._admit(at, job):
            return True
        full = not self._batch.slots
        self._counters.skipped("slots" if full else "pages", job)
        if not (full or at.admitted or self._moves()):
            at.lost.append(job)
            return True
        return self._look_past(at, job, full)

    def _look_past(self, at: _Pass, job: Job, full: bool) -> bool:
        """Whether others may go before a request that does not fit, for which somebody may have to give way."""
        at.misfits += 1
        if at.misfits == 1:
            at.victims = self._preemption.victims(job, at.budget, at.room)
        if full:
            self._news = self._full = True
        if at.victims or full or job.aged or job is at.claimant or not self._decisions.look_past(job, at.misfits):
            return False
        if at.misfits == 1:
            self._seating.touch(job)
        return True

    def _candidates(self, claimant: Job | None) -> Iterator[Job]:
        """As many as a pass looks at, in the order in which they are tried: first the one for whom others gave way."""
        order = islice(self._queue.ordered(self._view), self._look_at)
        return order if claimant is None else chain([claimant], (job for job in order if job is not claimant))

    def _held(self, at: _Pass, job: Job) -> Reason | None:
        """Why a request is not even tried."""
        if self._fetches and self._fetches.holds(job, at.now):
            self.held_since = at.now if at.held_since is None else at.held_since
            return "fetch"
        if self._follows(job):
            return "follows"
        if not (job.aged or job is at.claimant or not at.room.running or self._decisions.admit(job)):
            self._refused = True
            return "policy"
        if at.budget < self._page:
            self._news = True
            return "budget"
        return None

    def _follows(self, job: Job) -> bool:
        """Whether a running request is computing what this one would compute first."""
        if self._batch.leaders.leader(job) is None:
            return False
        self._counters.follows += not job.followed
        job.followed = True
        return True

    def _admit(self, at: _Pass, job: Job) -> bool:
        """Give a request pages and a slot, and begin with its first chunk in the draft."""
        if not self._batch.slots:
            return False
        seat = self._seating.sit(job, at.budget, at.room)
        if seat is None:
            return False
        if self._fetches:
            self._fetches.forget(job, at.now)
        self._queue.admitted(job)
        self._preemption.settle(job)
        self._copies.let_go(job)
        self._counters.admitted(job, at.now)
        if job.cached is not None:
            self._counters.resumed_tokens += seat.lease.cached.total
        at.room.add(seat)
        end = min(chunk_end(seat.planned, seat.target, at.budget, self._page), seat.lease.capacity)
        at.draft.admit(seat, end)
        at.budget -= end - seat.planned
        at.admitted = True
        return True

    def _make_way(self, at: _Pass, job: Job) -> None:
        """They leave, out of the step that is being planned, too; the request goes at once where nothing is in flight.

        Where it does not, it is tried again as soon as their pages are free, and nobody is admitted before it.
        """
        self.made_way = True
        self._preemption.claim(job, at.victims)
        at.room = at.room.without(at.victims)
        at.budget += sum(end - seat.planned for seat, end in at.draft.chunks if seat in at.victims)
        for seat in at.victims:
            self._retract(seat, "preempted")
        at.draft.drop_ended()
        self._admit(at, job)

    def _moves(self) -> bool:
        """Whether pages may come free by themselves."""
        return self._batch.flying or self._copies.saving > 0 or any(self._batch.seats)
