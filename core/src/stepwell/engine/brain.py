"""The brain: what happened goes in, what to do comes out. No I/O, no clock, no thread.

A tick takes the events since the last one, then plans steps until as many are in flight as the runner wants: decode
rows first, then chunks of prompts that are under way, then new requests while budget, slots and pages last. What it
promises: whoever is admitted finishes, whoever cannot is refused at once, and what a request is answered never depends
on what else happens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.runner import ModelInfo, StepResult
from stepwell.abc.schedule import SchedulePolicy
from stepwell.cache.cache import Cache
from stepwell.engine.actions import Action, Event, Launch, SavesEnded
from stepwell.engine.admit import Admission
from stepwell.engine.batch import Batch
from stepwell.engine.below import Below
from stepwell.engine.copies import Copies
from stepwell.engine.fetches import Fetches
from stepwell.engine.messages import Abort, Output
from stepwell.engine.planner import Planner
from stepwell.engine.prompts import Prompts
from stepwell.engine.room import RoomMaker
from stepwell.engine.stats import Cause, Counters
from stepwell.engine.stores import Stores
from stepwell.engine.turns import Turns
from stepwell.schedule.admission import refusal
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.forecast import Forecast
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Flight
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request
from stepwell.schedule.view import View
from stepwell.types import TOKEN_BYTES, Cached, TokenLogprob

ANSWERED = ("stop", "length")
"""How answers end that are as long as they were meant to be."""


@dataclass(frozen=True, slots=True)
class BrainSettings:
    """The limits that a brain works within."""

    max_prefill_tokens: int = 16_384
    """Most prompt tokens that one step computes."""
    chunk: int = 16_384
    """The runner's preferred chunk; a step's prompt tokens stay within it, too."""
    max_running: int = 256
    max_waiting: int = 20_000
    """A request that comes when so many wait is refused."""
    depth: int = 2
    """Steps that may be in flight."""
    max_steps: int = 1
    """Longest horizon that the runner can use."""
    save_pages_per_step: int = 1024
    late_saves: bool = False
    """Whether the runner's saves end after their steps."""
    store_pages: int = 2048
    """Pages that may be on their way to storage."""
    look_at: int = 512
    """Requests that one admission pass looks at."""
    prefill_every: int = 1
    """While anything decodes, chunks go into every so-manieth step only."""
    decode_every: int = 1
    """While prompts are under way, decode rows go into every so-manieth step only."""
    max_retractions: int = 3
    """Who gave way so often stays, as long as there is anybody else."""
    count_by: tuple[str, ...] = ()
    """What of a request is counted by."""
    reserve: float = 0.4
    """Share of the tokens that running requests may still generate for which pages are kept; adapts from here."""
    step_retries: int = 2
    """Failed steps after which a request ends with an error."""
    fetch_grace: float = 0.1
    """Seconds that a request waits for reads in the air once its fetch was stopped."""


class Brain:
    """Decides for one tensor-parallel group."""

    def __init__(
        self,
        *,
        model: ModelInfo,
        cache: Cache,
        policy: SchedulePolicy,
        prefetch: PrefetchPolicy | None,
        settings: BrainSettings,
    ) -> None:
        groups, page = cache.shape.groups, cache.shape.page_size
        self._model = model
        self._cache = cache
        self._settings = settings
        self._page = page
        page_bytes = tuple(group.token_bytes * group.ranks * page for group in groups)
        self._windowed = bool(cache.geometry.windows)
        self.counters = Counters.counting(settings.count_by)
        self._now = 0.0
        self._actions: list[Action] = []
        self._jobs: dict[str, Job] = {}
        self._arrivals = 0
        self._flights: deque[Flight] = deque()
        self._expiries: list[float] = []
        self._draining = False

        self._queue = Queue(policy, self.counters.fault)
        self._batch = Batch(cache, settings.max_running, model.eos)
        self._forecast = Forecast(settings.reserve)
        self._view = View(cache, lambda: self._batch.seats, self._forecast.expected)
        decisions = Decisions(policy, self._view, self.counters.fault)
        self._copies = Copies(cache, settings.save_pages_per_step, settings.late_saves, page_bytes, self.counters)
        self._stores = Stores(cache, settings.store_pages, page_bytes, self.counters, self._emit)
        self._fetches = None
        if prefetch is not None:
            self._fetches = Fetches(cache, prefetch, page, page_bytes, settings.fetch_grace, self.counters, self._emit)
        self._below = Below(cache, self._stores, self._fetches)
        self._room = RoomMaker(
            cache, self._batch, self._copies, decisions, self.counters, settings.max_retractions,
            self._retract, self._fail,
        )  # fmt: skip
        budget = max(page, min(settings.max_prefill_tokens, settings.chunk))
        prompts = Prompts(cache, self._batch, self._room, decisions, budget)
        self._turns = Turns(settings.prefill_every, settings.decode_every)
        self._admission = Admission(
            cache, self._queue, self._batch, self._copies, self._fetches, self._view, decisions, self._forecast,
            self.counters, settings.look_at, settings.max_retractions, self._never, self._retract,
        )  # fmt: skip
        self._planner = Planner(
            self._batch, self._copies, self._room, prompts, self._admission, self._turns, settings.max_steps
        )

    # --- the shell's side --------------------------------------------------------------------------------------

    def tick(self, now: float, events: Sequence[Event]) -> list[Action]:
        """Take what happened, and say what to do. `now` never goes back."""
        self._now = self._view.now = now
        self._actions = []
        self.counters.ticks += 1
        for event in events:
            self._take(event)
        self._expire()
        while len(self._flights) < self._settings.depth and self._launch():
            pass
        self._stores.start()
        return self._actions

    def next_wake(self, now: float) -> float | None:
        """When to tick even if nothing happens before; None: no need to."""
        times = self._expiries[:1]
        held = self._admission.held_since
        if held is not None:
            times.append(now + 0.005 + 0.1 * (now - held))
        if self._stores.behind:
            times.append(now + 0.005)
        return max(now, min(times)) if times else None

    def drain(self) -> None:
        """Refuse whatever comes from now on, and finish what is there."""
        self._draining = True

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or is in flight in any direction."""
        return not (self._jobs or self._flights or self._copies.saving or self._below.open)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._jobs) - len(self._queue)

    def stats(self) -> dict[str, float]:
        """Counters and gauges by name."""
        values = self.counters.values()
        values["waiting"] = self.waiting
        values["running"] = self.running
        values["draining"] = float(self._draining)
        values["in_flight"] = len(self._flights)
        values["save_pages_in_flight"] = self._copies.saving
        values["fetch_pages_in_flight"] = self._fetches.pages if self._fetches else 0
        values["store_pages_in_flight"] = self._stores.pages
        values["forecast_share"] = self._forecast.margin
        return values

    # --- events ------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case StepResult():
                self._land(event)
            case Request():
                self._arrive(event)
            case Abort():
                self._abort(event)
            case SavesEnded():
                self._copies.saved(event.copies)
                self._admission.stir()
            case _:
                if self._below.take(event, self._now):
                    self._admission.stir()

    def _arrive(self, request: Request) -> None:
        self.counters.requests += 1
        later = self._not_now()
        reason = later or self._refusal(request)
        if reason is not None:
            self.counters.refused += 1
            self._emit(Output(request.rid, finish="refused", error=reason, later=later is not None))
            return
        job = Job(request, self._arrivals, self._now)
        self._arrivals += 1
        self._jobs[job.rid] = job
        self.counters.arrived(job)
        self._queue.add(job)
        self._admission.stir()
        if self._fetches:
            self._fetches.begin(job)

    def _not_now(self) -> str | None:
        if self._draining:
            return "the engine is shutting down"
        if len(self._queue) >= self._settings.max_waiting:
            return f"{len(self._queue)} requests wait already, and no more than {self._settings.max_waiting} may"
        return None

    def _refusal(self, request: Request) -> str | None:
        if request.rid in self._jobs:
            return f"a request named {request.rid!r} is being served already"
        return refusal(request, self._cache, self._model)

    def _abort(self, event: Abort) -> None:
        job = self._jobs.get(event.rid)
        if job is None:
            self.counters.unknown_aborts += 1
            return
        self.counters.aborted += 1
        self._end(job, event.finish)

    def _land(self, result: StepResult) -> None:
        """A step has completed: take its copies first, then its tokens."""
        flight = self._flights.popleft()
        if flight.number != result.number:
            raise ValueError(f"step {result.number} ended where step {flight.number} was due")
        self._batch.landed(flight.number)
        rescuing = self._copies.rescuing
        for seat in self._copies.landed(flight, result):
            self.counters.failed_loads += 1
            seat.job.load = False
            self._requeue(seat, "load", publish=False)
        error = result.error or flight.misfit(result)
        if error is not None:
            self._land_error(flight, error)
        else:
            self._land_chunks(flight, result)
            self._land_decodes(flight, result)
        for seat, cause in self._batch.may_leave():
            self._give_way(seat, cause)
        if rescuing and not self._copies.rescuing:
            self._admission.stir()
        self._admission.landed(flight.number)

    def _land_error(self, flight: Flight, error: str) -> None:
        """No row counts. What the plan told of a seat may not have reached the runner: all of them start anew."""
        self.counters.step_errors += 1
        seats = dict.fromkeys(chain(flight.decodes, (seat for seat, _ in flight.chunks), flight.touched))
        for seat in seats:
            if seat.left:
                continue
            seat.job.failures += 1
            if seat.job.failures > self._settings.step_retries:
                self._fail(seat.job, error)
            else:
                self._requeue(seat, "step", publish=True)

    def _land_chunks(self, flight: Flight, result: StepResult) -> None:
        tokens = result.tokens[len(flight.decodes) :]
        logprobs = result.logprobs[len(flight.decodes) :] if result.logprobs else repeat(())
        for (seat, end), sampled, logs in zip(flight.chunks, tokens, logprobs, strict=False):
            if seat.left:
                self.counters.surplus_tokens += len(sampled)
                continue
            self.counters.computed_tokens += end - seat.done
            self.counters.recomputed_tokens += max(0, min(end, seat.job.reached) - seat.done)
            seat.done = end
            if seat.job.cached is None:
                seat.job.cached = seat.cached = seat.lease.cached
                self.counters.hit(seat.cached, seat.prompt)
            if sampled:
                self._sampled(seat, sampled, logs)
            if not seat.left:
                self._publish_chunk(seat)

    def _land_decodes(self, flight: Flight, result: StepResult) -> None:
        """The hot loop: a few hundred nanoseconds a row decide how many rows a brain can drive."""
        emit, surplus, fresh = self._actions.append, 0, 0
        logprobs = result.logprobs or repeat(())
        for seat, tokens, logs in zip(flight.decodes, result.tokens, logprobs, strict=False):
            if seat.left:
                surplus += len(tokens)
                continue
            done = seat.done + len(tokens)
            if done >= seat.last or (seat.stops is not None and not seat.stops.isdisjoint(tokens)):
                self._sampled(seat, tokens, logs, decode=True)
                continue
            fresh += len(tokens)
            seat.done = done
            seat.out += tokens
            emit(Output(seat.rid, tokens, logs or None, None, None, seat.prompt, done - seat.base, seat.cached))
        self.counters.surplus_tokens += surplus
        self.counters.computed_tokens += fresh
        self.counters.generated_tokens += fresh
        if flight.horizon > 1:
            for seat in flight.decodes:
                seat.planned = seat.done
        if self._windowed:
            self._trim(flight.decodes)

    def _sampled(
        self, seat: Seat, tokens: tuple[int, ...], logs: tuple[TokenLogprob, ...], *, decode: bool = False
    ) -> None:
        """Tokens that may be a request's last: cut behind a stop, counted, told; the request ends with them."""
        finish = None
        if seat.stops is not None and not seat.stops.isdisjoint(tokens):
            finish = "stop"
            keep = next(at for at, token in enumerate(tokens, 1) if token in seat.stops)
            self.counters.surplus_tokens += len(tokens) - keep
            tokens, logs = tokens[:keep], logs[:keep]
        if decode:
            seat.done += len(tokens)
            self.counters.computed_tokens += len(tokens)
        if seat.done >= seat.last:
            finish = finish or "length"
        seat.out += tokens
        self.counters.generated_tokens += len(tokens)
        if finish:
            self.counters.finished += 1
            self._end(seat.job, finish, tokens=tokens, logs=logs)
        else:
            generated = seat.done - seat.base
            self._emit(Output(seat.rid, tokens, logs or None, None, None, seat.prompt, generated, seat.cached))

    def _publish_chunk(self, seat: Seat) -> None:
        """The chunk is computed: others may use its pages from now on, and who follows gets on."""
        if seat.store:
            computed = seat.tokens[: seat.done * TOKEN_BYTES]
            self._cache.publish(seat.lease, computed, digests=seat.job.request.digests)
            self._batch.leaders.published(seat, seat.done)
        if self._windowed:
            self._cache.trim(seat.lease, seat.done)
        self._batch.edited.append(seat)
        self._admission.stir()

    def _trim(self, seats: Iterable[Seat]) -> None:
        for seat in seats:
            if seat.done >= seat.trim_at and not seat.left:
                self._cache.trim(seat.lease, seat.done)
                seat.trim_at = (seat.done // self._page + 1) * self._page
                self._batch.edited.append(seat)
                self._admission.stir()

    # --- a request's end, and its way back to the queue ---------------------------------------------------------

    def _end(
        self,
        job: Job,
        finish: str,
        error: str | None = None,
        tokens: tuple[int, ...] = (),
        logs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """The last that is heard of a request, from any state. What it computed stays behind for others."""
        generated = job.generated
        self.counters.ended(job, generated)
        if finish in ANSWERED:
            self._forecast.finished(generated, job.max_new)
        self._admission.gone(job)
        self._copies.let_go(job)
        if job.seat is None:
            self._queue.remove(job)
        else:
            self._leave(job.seat, publish=True, ttl=job.request.ttl)
        if self._fetches:
            self._fetches.forget(job, self._now)
        del self._jobs[job.rid]
        self._admission.stir()
        cached = job.cached or Cached()
        self._emit(Output(job.rid, tokens, logs or None, finish, error, job.prompt_length, generated, cached))

    def _leave(self, seat: Seat, *, publish: bool, ttl: float | None = None) -> None:
        expires = None
        if ttl is not None and seat.store:
            expires = self._now + ttl
            heapq.heappush(self._expiries, expires)
        self._batch.leave(seat, publish=publish, expires=expires)
        self._admission.stir()

    def _requeue(self, seat: Seat, cause: Cause, *, publish: bool) -> None:
        """The job goes back to its place in the queue, with what it generated."""
        job = seat.job
        self.counters.retracted(cause, job)
        self.counters.recomputed_tokens += seat.planned - seat.done  # in flight; dropped when they land
        if publish:
            job.reached = max(job.reached, seat.done)
        self._leave(seat, publish=publish)
        job.resume_later()
        self._queue.add(job)

    def _retract(self, seat: Seat, cause: Cause) -> None:
        """It gives its pages to others, which have them when no step and no save uses them any more."""
        if cause == "pages":
            self._forecast.ran_out()
        if seat.done < seat.planned:
            self._batch.give_way(seat, cause)
        else:
            self._give_way(seat, cause)

    def _give_way(self, seat: Seat, cause: Cause) -> None:
        """What it computed is published, and saved as far as it is not: it goes on from there."""
        seat.job.retractions += 1
        computed = seat.computed()
        self._requeue(seat, cause, publish=True)
        self._copies.rescue(seat.job, computed)

    def _fail(self, job: Job, why: str) -> None:
        self.counters.failed += 1
        self._end(job, "error", why)

    def _never(self, job: Job) -> None:
        """Alone in an idle engine it did not fit: say so instead of waiting for ever."""
        reason = refusal(job.request, self._cache, self._model)
        self._fail(job, reason or "device memory cannot hold a request that should fit by itself")

    # --- planning ----------------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Plan a step and launch it; False where there is nothing to do."""
        if self._flights and self._flights[-1].horizon > 1:
            return False  # how far it gets is not known
        draft = self._planner.draft(self._now)
        while not draft and self._planner.gave_up:
            draft = self._planner.draft(self._now)
        if not draft:
            return False
        due = bool(self._queue) and any(flight.chunks for flight in self._flights)
        horizon = self._planner.horizon(draft, due=due)
        batch = self._batch
        batch.launched += 1
        plan, flight = draft.launch(batch.launched, horizon, batch.slots.take_closes(), batch.edited)
        batch.took_off(draft)
        self._turns.launched(draft, horizon)
        self._cache.step_launched(plan.number)
        self._flights.append(flight)
        self.counters.steps += 1
        self._emit(Launch(plan))
        return True

    # --- time -------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if self._expiries and self._expiries[0] <= self._now:
            while self._expiries and self._expiries[0] <= self._now:
                heapq.heappop(self._expiries)
            self._cache.expire(self._now)

    def _emit(self, action: Action) -> None:
        self._actions.append(action)
