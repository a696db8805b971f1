"""Who runs next: the waiting requests, tried in the policy's order while budget, slots and pages last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        admitted = False
        lost: list[Job] = []
        victims: Sequence[Seat] = ()
        misfits = 0
        room = Room(self._cache, self._forecast, self._batch.seats)
        claimant = self._preemption.claimant
        candidates = self._candidates(claimant)
        for job in candidates:
            held = self._held(job, claimant, room, now)
            if held is None and budget < self._page:
                held, self._news = "budget", True
            if held is not None:
                self._counters.skipped(held, job)
                if held == "fetch":
                    self.held_since = now if held_since is None else held_since
                if held == "budget" or job is claimant:
                    break
                continue
            seat = self._seat(job, budget, room, now)
            if seat is not None:
                admitted = True
                budget = self._begin(draft, seat, budget, room)
                continue
            full = not self._batch.slots
            self._counters.skipped("slots" if full else "pages", job)
            if not (full or admitted or self._moves()):
                lost.append(job)
                continue
            misfits += 1
            if misfits == 1:
                victims = self._preemption.victims(job, budget, room)
            if full:
                self._news = self._full = True
            if victims or full or job.aged or job is claimant or not self._decisions.look_past(job, misfits):
                break
            if misfits == 1:
                self._seating.touch(job)
        else:
            self._news = admitted and (self._queue.cut or len(self._queue) > self._look_at)
        if (victims or self._preemption.claimant) and (behind := next(candidates, None)):
            self._counters.skipped("claim", behind)
        for job in lost:
            self._never(job)
        return self._make_way(draft, job, victims, budget, room, now) if victims else budget

    def _candidates(self, claimant: Job | None) -> Iterator[Job]:
        """As many as a pass looks at, in the order in which they are tried: first the one for whom others gave way."""
        order = islice(self._queue.ordered(self._view), self._look_at)
        return order if claimant is None else chain([claimant], (job for job in order if job is not claimant))

    def _held(self, job: Job, claimant: Job | None, room: Room, now: float) -> Reason | None:
        """Why a request is not even tried."""
        if self._fetches and self._fetches.holds(job, now):
            return "fetch"
        if self._follows(job):
            return "follows"
        if job.aged or job is claimant or not room.running or self._decisions.admit(job):
            return None
        self._refused = True
        return "policy"

    def _follows(self, job: Job) -> bool:
        """Whether a running request is computing what this one would compute first."""
        if self._batch.leaders.leader(job) is None:
            return False
        self._counters.follows += not job.followed
        job.followed = True
        return True

    def _seat(self, job: Job, budget: int, room: Room, now: float) -> Seat | None:
        if not self._batch.slots:
            return None
        seat = self._seating.sit(job, budget, room)
        if seat is None:
            return None
        if self._fetches:
            self._fetches.forget(job, now)
        self._queue.admitted(job)
        self._preemption.settle(job)
        self._copies.let_go(job)
        self._counters.admitted(job, now)
        if job.cached is not None:
            self._counters.resumed_tokens += seat.lease.cached.total
        return seat

    def _begin(self, draft: Draft, seat: Seat, budget: int, room: Room) -> int:
        """Its first chunk goes into the draft; answers what is left of the budget."""
        room.add(seat)
        end = min(chunk_end(seat.planned, seat.target, budget, self._page), seat.lease.capacity)
        draft.admit(seat, end)
        return budget - (end - seat.planned)

    def _make_way(self, draft: Draft, job: Job, victims: Sequence[Seat], budget: int, room: Room, now: float) -> int:
        """They leave, out of the step that is being planned, too; the request goes at once where nothing is in flight.

        Where it does not, it is tried again as soon as their pages are free, and nobody is admitted before it.
        """
        self.made_way = True
        self._preemption.claim(job, victims)
        room = room.without(victims)
        budget += sum(end - seat.planned for seat, end in draft.chunks if seat in victims)
        for seat in victims:
            self._retract(seat, "preempted")
        draft.drop_ended()
        seated = self._seat(job, budget, room, now)
        if seated is None:
            return budget
        return self._begin(draft, seated, budget, room)

    def _moves(self) -> bool:
        """Whether pages may come free by themselves."""
        return self._batch.flying or self._copies.saving > 0 or any(self._batch.seats)
