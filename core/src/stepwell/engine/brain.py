"""The brain: what happened goes in, what to do comes out. No I/O, no clock, no thread.

A tick takes the events since the last one, then plans steps until as many are in flight as the runner wants: decode rows
first, then chunks of prompts that are under way, then new requests while budget, slots and pages last. What it promises:
whoever is admitted finishes, whoever cannot is refused at once, and a request's answer never depends on what else happens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat

from stepwell.abc.prefetch import PrefetchPolicy
from stepwell.abc.runner import ModelInfo, StepResult
from stepwell.abc.schedule import SchedulePolicy
from stepwell.cache.cache import Cache, StoreOp
from stepwell.engine.actions import (
    Action,
    Event,
    FetchEnded,
    FetchMoved,
    Launch,
    Queried,
    Store,
    StoreEnded,
)
from stepwell.engine.fetches import Fetches
from stepwell.engine.messages import Abort, Output
from stepwell.engine.stats import Counters
from stepwell.schedule.admission import Forecast, Room, chunk_end, refusal
from stepwell.schedule.following import Leaders
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft, Flight, Slots
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request
from stepwell.schedule.view import View
from stepwell.types import TOKEN_BYTES, Cached, Done, Full, TokenLogprob


AHEAD = 4
"""Pages that a decode row takes at once while there are plenty."""


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
    store_pages: int = 2048
    """Pages that may be on their way to storage."""
    look_past: int = 4
    """Requests that do not fit now and that smaller ones behind may pass, in one admission pass."""
    look_at: int = 512
    """Requests that one admission pass looks at."""
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
        self._policy = policy
        self._settings = settings
        self._page = page
        self._page_bytes = tuple(group.token_bytes * page for group in groups)
        self._windowed = not all(isinstance(group.need, Full) for group in groups)
        self._budget = max(page, min(settings.max_prefill_tokens, settings.chunk))
        self.counters = Counters()
        self._now = 0.0
        self._actions: list[Action] = []
        self._fetches = prefetch and Fetches(
            cache, prefetch, page, self._page_bytes, settings.fetch_grace, self.counters, self._emit
        )

        self._jobs: dict[str, Job] = {}
        self._arrivals = 0
        self._queue = Queue(policy, self.counters.fault)
        self._view = View(cache)
        self._forecast = Forecast()
        self._leaders = Leaders(page)
        self._slots = Slots(settings.max_running)
        self._prefilling: list[Seat] = []
        self._decoding: list[Seat] = []
        self._edited: list[Seat] = []
        self._flights: deque[Flight] = deque()
        self._launched = 0
        self._completed = 0
        self._relief = 0
        """Pages given up so far are free once this step has completed."""
        self._short = False
        """Pages ran out while this plan was made."""
        self._pages_ahead: int | None = None
        """What `_ahead` says while this plan is made."""
        self._gone = False
        """Some seat ended since the batch was last swept."""
        self._news = True
        """Something happened since the last admission pass that may let a waiting request run."""
        self._news_at = 0
        """The same once this step has completed: pages given up before it was launched are free then."""
        self._held_since: float | None = None
        """When the first of the requests began to wait that could run but for their fetch."""
        self._stores: dict[int, StoreOp] = {}
        self._storing = 0
        self._expiries: list[float] = []
        self._draining = False

    # --- the shell's side --------------------------------------------------------------------------------------

    def tick(self, now: float, events: Sequence[Event]) -> list[Action]:
        """Take what happened, and say what to do. `now` never goes back."""
        self._now = now
        self._actions = []
        self.counters.ticks += 1
        for event in events:
            self._take(event)
        self._expire()
        while len(self._flights) < self._settings.depth and self._launch():
            pass
        self._store()
        return self._actions

    def next_wake(self, now: float) -> float | None:
        """When to tick even if nothing happens before; None: no need to."""
        times = self._expiries[:1]
        if self._held_since is not None:
            times.append(now + 0.005 + 0.1 * (now - self._held_since))
        return max(now, min(times)) if times else None

    def drain(self) -> None:
        """Refuse whatever comes from now on, and finish what is there."""
        self._draining = True

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or is in flight in any direction."""
        return not (self._jobs or self._flights or self._stores or (self._fetches and self._fetches.open))

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
        values["fetch_pages_in_flight"] = self._fetches.pages if self._fetches else 0
        values["store_pages_in_flight"] = self._storing
        values["forecast_share"] = self._forecast.share
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
            case StoreEnded():
                self._stored(event)
            case Queried() if self._fetches:
                self._news |= self._fetches.queried(event)
            case FetchMoved() if self._fetches:
                self._fetches.moved(event)
            case FetchEnded() if self._fetches:
                self._news |= self._fetches.ended(event)

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
        self._queue.add(job)
        self._stir()
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
        self._completed = flight.number
        self._cache.step_completed(flight.number)
        self._slots.completed(flight.number)
        self._land_copies(flight, result)
        if result.error is not None:
            self._land_error(flight, result.error)
        else:
            self._land_chunks(flight, result)
            self._land_decodes(flight, result)
        if flight.chunks:
            self._stir()
        elif flight.number == self._news_at or self.running == 0:
            self._news = True

    def _land_copies(self, flight: Flight, result: StepResult) -> None:
        for copy in flight.saves:
            ok = result.copies.get(copy.id) or (False,) * len(copy.device)
            self.counters.bytes_saved += sum(ok) * self._page_bytes[copy.group]
            self._cache.saved(copy, ok)
        failed: list[Seat] = []
        for seat, copy in flight.loads:
            ok = result.copies.get(copy.id) or (False,) * len(copy.device)
            self.counters.bytes_loaded += sum(ok) * self._page_bytes[copy.group]
            seat.loading -= 1
            if not self._cache.loaded(seat.lease, copy, ok) and not seat.ended:
                failed.append(seat)
        for seat in dict.fromkeys(failed):
            self.counters.failed_loads += 1
            seat.job.load = False
            self._requeue(seat, publish=False)

    def _land_error(self, flight: Flight, error: str) -> None:
        """No row counts. Whatever the step was told about a seat may not have reached the runner: all of them start anew."""
        self.counters.step_errors += 1
        seats = dict.fromkeys(chain(flight.decodes, (seat for seat, _ in flight.chunks), flight.touched))
        for seat in seats:
            if seat.ended:
                continue
            seat.job.failures += 1
            if seat.job.failures > self._settings.step_retries:
                self.counters.failed += 1
                self._end(seat.job, "error", error)
            else:
                self._requeue(seat, publish=True)

    def _land_chunks(self, flight: Flight, result: StepResult) -> None:
        tokens = result.tokens[len(flight.decodes) :]
        logprobs = result.logprobs[len(flight.decodes) :] if result.logprobs else repeat(())
        for (seat, end), sampled, logs in zip(flight.chunks, tokens, logprobs, strict=False):
            if seat.ended:
                self.counters.surplus_tokens += len(sampled)
                continue
            self.counters.computed_tokens += end - seat.done
            seat.done = end
            if seat.job.cached is None:
                seat.job.cached = seat.cached = seat.lease.cached
                self.counters.hit(seat.cached, seat.prompt)
            if sampled:
                self._sampled(seat, sampled, logs)
            if not seat.ended:
                self._publish_chunk(seat)

    def _land_decodes(self, flight: Flight, result: StepResult) -> None:
        """The hot loop: a few hundred nanoseconds a row decide how many rows a brain can drive."""
        emit, surplus, fresh = self._actions.append, 0, 0
        logprobs = result.logprobs or repeat(())
        for seat, tokens, logs in zip(flight.decodes, result.tokens, logprobs, strict=False):
            if seat.ended:
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
        """Tokens that may be a request's last: cut behind a stop, counted, told, and the request ended where it ends."""
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
            self._forecast.finished()
            self._end(seat.job, finish, tokens=tokens, logs=logs)
        else:
            generated = seat.done - seat.base
            self._emit(Output(seat.rid, tokens, logs or None, None, None, seat.prompt, generated, seat.cached))

    def _publish_chunk(self, seat: Seat) -> None:
        """The chunk is computed: others may use its pages from now on, and who follows gets on."""
        if seat.store:
            self._cache.publish(seat.lease, seat.tokens[: seat.done * TOKEN_BYTES])
            self._leaders.published(seat, seat.done)
        if self._windowed:
            self._cache.trim(seat.lease, seat.done)
        self._edited.append(seat)

    def _trim(self, seats: Iterable[Seat]) -> None:
        for seat in seats:
            if seat.done >= seat.trim_at and not seat.ended:
                self._cache.trim(seat.lease, seat.done)
                seat.trim_at = seat.done + self._page
                self._edited.append(seat)
                self._stir()

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
        if job.seat is None:
            self._queue.remove(job)
        else:
            self._leave(job.seat, publish=True, last=True)
        if self._fetches:
            self._fetches.forget(job, self._now)
        del self._jobs[job.rid]
        self._stir()
        cached = job.cached or Cached()
        self._emit(Output(job.rid, tokens, logs or None, finish, error, job.prompt_length, generated, cached))

    def _leave(self, seat: Seat, *, publish: bool, last: bool = False) -> None:
        """A seat's pages and slot go back. Steps in flight that use them are waited for by cache and slots."""
        seat.ended = True
        if publish and seat.store and not seat.loading:
            expires = None
            ttl = seat.job.request.ttl
            if last and ttl is not None:
                expires = self._now + ttl
                heapq.heappush(self._expiries, expires)
            self._cache.publish(seat.lease, seat.computed(), final=True, expires=expires)
        self._cache.close(seat.lease)
        self._leaders.remove(seat)
        self._slots.leave(seat.slot, self._launched)
        self._slots.completed(self._completed)
        self._gone = True
        self._stir()

    def _requeue(self, seat: Seat, *, publish: bool) -> None:
        """The job goes back to its place in the queue, with what it generated."""
        job = seat.job
        self._leave(seat, publish=publish)
        job.resume_later()
        self._queue.add(job)

    # --- planning ----------------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Plan a step and launch it; False where there is nothing to do."""
        if self._flights and self._flights[-1].horizon > 1:
            return False  # how far it gets is not known
        draft = self._draft()
        while not draft and self._short and not self._flights:
            draft = self._draft()  # pages were given up and are free at once
        if not draft:
            return False
        horizon = self._horizon(draft)
        self._launched += 1
        plan, flight = draft.launch(self._launched, horizon, self._slots.take_closes(), self._edited)
        self._edited.clear()
        self._cache.step_launched(plan.number)
        self._flights.append(flight)
        self._seat_chunks(draft)
        self.counters.steps += 1
        self._emit(Launch(plan))
        return True

    def _draft(self) -> Draft:
        draft = Draft()
        self._short = False
        self._pages_ahead = None
        self._sweep()
        draft.decodes = [seat for seat in self._decoding if seat.planned < seat.until or self._room(seat)]
        budget = self._plan_chunks(draft)
        if self._short:
            draft.drop_ended()
        else:
            self._admit(draft, budget)
        draft.saves = self._cache.saves(self._settings.save_pages_per_step)
        return draft

    def _sweep(self) -> None:
        if self._gone:
            self._decoding = [seat for seat in self._decoding if not seat.ended]
            self._prefilling = [seat for seat in self._prefilling if not seat.ended]
            self._gone = False

    def _seat_chunks(self, draft: Draft) -> None:
        """Who has its whole prompt launched decodes from the next step on; who was admitted just now joins the batch."""
        for seat, end in draft.chunks:
            if end == seat.target:
                seat.until = min(seat.lease.capacity, seat.last)
                self._decoding.append(seat)
        self._prefilling = [seat for seat in self._prefilling if seat.planned < seat.target]
        self._prefilling += [seat for seat in draft.admitted if seat.planned < seat.target]

    def _plan_chunks(self, draft: Draft) -> int:
        """Go on with prompts under way, oldest first; answers what is left of the step's budget."""
        budget = self._budget
        for seat in self._prefilling:
            end = chunk_end(seat.planned, seat.target, budget, self._page)
            if end == seat.planned or seat.ended:
                continue
            end = self._stretch(seat, end)
            if end > seat.planned:
                draft.chunks.append((seat, end))
                budget -= end - seat.planned
        return budget

    def _horizon(self, draft: Draft) -> int:
        """For how many steps nothing can change, pages for all of them allocated."""
        steps = self._settings.max_steps
        if steps == 1 or draft.chunks or draft.saves or self._prefilling or self._short:
            return 1
        if self._queue and (self._news or self._held_since is not None or any(f.chunks for f in self._flights)):
            return 1
        steps = min(steps, min(seat.last - seat.planned for seat in draft.decodes))
        for seat in draft.decodes if steps > 1 else ():
            if seat.planned + steps > seat.until:
                if self._cache.extend(seat.lease, seat.planned + steps):
                    seat.until = min(seat.lease.capacity, seat.last)
                    self._edited.append(seat)
                else:
                    steps = min(steps, seat.until - seat.planned)
        return steps

    # --- pages run out -----------------------------------------------------------------------------------------

    def _room(self, seat: Seat) -> bool:
        """Whether a decode row has a page to write to, made where it can be."""
        if seat.ended or seat.planned >= seat.last:
            return False
        ahead = min(seat.last, seat.planned + self._ahead())
        if ahead == seat.planned + 1 or not self._cache.extend(seat.lease, ahead):
            while not self._cache.extend(seat.lease, seat.planned + 1):
                if not self._relieve(seat):
                    return False
        seat.short_since = -1
        seat.until = min(seat.lease.capacity, seat.last)
        self._edited.append(seat)
        return True

    def _ahead(self) -> int:
        """Tokens for which a decode row takes pages at once: a few pages while there are plenty, which saves calls."""
        if self._pages_ahead is None:
            plenty = min(self._cache.available()) > 16 * AHEAD * len(self._decoding)
            self._pages_ahead = AHEAD * self._page if plenty else 1
        return self._pages_ahead

    def _stretch(self, seat: Seat, end: int) -> int:
        """Pages for a chunk up to `end`, or for a shorter one; answers where it ends."""
        start, page = seat.planned, self._page
        while end > seat.lease.capacity and not self._cache.extend(seat.lease, end):
            shorter = (start + end) // 2 // page * page
            if shorter > start:
                end = shorter
            elif not self._relieve(seat):
                return start
        seat.short_since = -1
        self._edited.append(seat)
        return end

    def _relieve(self, seat: Seat) -> bool:
        """Pages ran out for a running request. True: try again now; False: it sits this step out, or has lost its seat.

        Pages given up while steps are in flight come free only when those have completed, so the request first waits
        for that, and only then takes pages from somebody; then for that to take effect, before it takes more.
        """
        self._short = True
        if self._completed < self._relief:
            self.counters.stalls += 1
            return False
        if self._flights and seat.short_since < 0:
            self._relief = seat.short_since = self._launched
            self.counters.stalls += 1
            return False
        running = [other for other in chain(self._decoding, self._prefilling) if not other.ended]
        if len(running) == 1:
            return self._alone(seat)
        victim = self._victim([other.job for other in running])
        assert victim.seat is not None
        self.counters.retractions += 1
        self._forecast.ran_out()
        self._requeue(victim.seat, publish=True)
        self._relief = self._launched
        return not seat.ended

    def _alone(self, seat: Seat) -> bool:
        """Copies in flight may hold pages; else a request that fits by itself did not, which is a fault of ours."""
        self.counters.stalls += 1
        if not self._flights:
            self.counters.failed += 1
            self._end(seat.job, "error", "device memory ran out for a request that should fit by itself")
        return False

    def _victim(self, running: Sequence[Job]) -> Job:
        view = self._view.at(self._now, self._seats())
        try:
            victim = self._policy.victim(running, view)
            return next(job for job in running if job is victim)
        except StopIteration:
            self.counters.fault("victim is not a running request")
        except Exception as error:
            self.counters.fault(f"victim raised {error!r}")
        return max(running, key=lambda job: (-job.priority, job.order))

    # --- admission ---------------------------------------------------------------------------------------------

    def _admit(self, draft: Draft, budget: int) -> None:
        """Admit waiting requests in the policy's order while budget, slots and pages last."""
        held_since, self._held_since = self._held_since, None
        if not self._queue or not (self._news or held_since is not None):
            return
        if budget < self._page or not self._slots:
            return
        self._news = False
        admitted: list[Job] = []
        room = Room(self._cache, self._forecast.share, self._seats())
        misfits = 0
        for job in islice(self._queue.ordered(self._view.at(self._now, self._seats())), self._settings.look_at):
            if self._fetches and self._fetches.holds(job, self._now):
                self._held_since = self._now if held_since is None else held_since
                continue
            if self._follows(job):
                continue
            seat = self._seat(job, budget, room)
            if seat is None:
                misfits += 1
                if not (admitted or self._flights or draft):
                    self._never(job)
                if job.aged or misfits > self._settings.look_past:
                    break
                continue
            admitted.append(job)
            room.add(seat)
            end = min(chunk_end(seat.planned, seat.target, budget, self._page), seat.lease.capacity)
            draft.admit(seat, end)
            self._edited.append(seat)
            budget -= end - seat.planned
            if budget < self._page or not self._slots:
                self._news = True
                break
        self._queue.admitted(admitted)

    def _follows(self, job: Job) -> bool:
        """Whether a running request is computing what this one would compute first."""
        if self._leaders.leader(job) is None:
            return False
        self.counters.follows += not job.followed
        job.followed = True
        return True

    def _seat(self, job: Job, budget: int, room: Room) -> Seat | None:
        """Give a job pages and a slot, up to the end of its prompt where every group keeps all of it anyway."""
        if room.rules_out(job, self._view.cached(job)):
            return None
        span = job.length if not self._windowed else budget
        lease = None
        while lease is None and span >= min(self._page, job.length):
            upto = partial(chunk_end, target=job.length, budget=span, page=self._page)
            reserve = room.reserve(job, upto(job.probed))
            lease = self._cache.admit(
                job.request.namespace,
                job.tokens,
                upto,
                load=job.load,
                reserve=reserve,
                priority=job.priority,
                fetched=job.fetched,
            )
            span = span // 2 // self._page * self._page if self._windowed else 0
        if lease is None:
            return None
        if self._fetches:
            self._fetches.forget(job, self._now)
        seat = job.seat = Seat(job, self._slots.take(), lease, self._model.eos)
        self.counters.admissions += 1
        if job.cached is not None:
            seat.cached = job.cached
            self.counters.resumed_tokens += lease.cached.total
        self._leaders.add(seat, lease.cached.device if lease.loads else lease.cached.total)
        return seat

    def _never(self, job: Job) -> None:
        """Alone in an idle engine it did not fit: say so instead of waiting for ever."""
        reason = refusal(job.request, self._cache, self._model)
        self.counters.failed += 1
        self._end(job, "error", reason or "device memory cannot hold a request that should fit by itself")

    # --- small things ------------------------------------------------------------------------------------------

    def _seats(self) -> Iterator[Seat]:
        return (seat for seat in chain(self._decoding, self._prefilling) if not seat.ended)

    def _stir(self) -> None:
        """A waiting request may be able to run now, or when the pages given up now are free."""
        self._news = True
        self._news_at = self._launched

    def _store(self) -> None:
        """Send on to storage what the write policy wants there."""
        left = self._settings.store_pages - self._storing
        for op in self._cache.stores(left) if left > 0 else ():
            self._stores[op.id] = op
            self._storing += len(op.keys)
            self._emit(Store(op))

    def _stored(self, event: StoreEnded) -> None:
        op = self._stores.pop(event.id, None)
        if op is None:
            return
        self._storing -= len(op.keys)
        good = sum(isinstance(result, Done) for result in event.results)
        self.counters.bytes_stored += good * self._page_bytes[op.group]
        self._cache.stored(op, event.results)

    def _expire(self) -> None:
        if self._expiries and self._expiries[0] <= self._now:
            while self._expiries and self._expiries[0] <= self._now:
                heapq.heappop(self._expiries)
            self._cache.expire(self._now)

    def _emit(self, action: Action) -> None:
        self._actions.append(action)
