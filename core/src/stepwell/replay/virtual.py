"""The timed replay: the brain's shell on a virtual clock, with a simulated device and simulated storage."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.abc.runner import ModelInfo, StepPlan, StepResult
from stepwell.cache.cache import Cache, FetchOp, StoreOp
from stepwell.cache.keys import namespace
from stepwell.engine.actions import (
    Action,
    Event,
    Fetch,
    FetchEnded,
    FetchMoved,
    Launch,
    Queried,
    Query,
    StopFetch,
    Store,
    StoreEnded,
)
from stepwell.engine.brain import Brain
from stepwell.engine.messages import Output
from stepwell.replay.links import Link, SimStore
from stepwell.replay.result import Hits, Result
from stepwell.replay.trace import FIRST_OUTPUT_TOKEN, Arrival
from stepwell.schedule.request import Request
from stepwell.schedule.timing import Machine
from stepwell.types import DONE, MISSING, GroupSpec, Sampling

READ_BATCH = 64
"""Pages a simulated read brings at once, as the live storage threads do."""


@dataclass(slots=True)
class Parts:
    """What a replay runs on."""

    brain: Brain
    cache: Cache
    model: ModelInfo
    groups: tuple[GroupSpec, ...]
    page_size: int
    machine: Machine
    store: SimStore | None = None
    read: Link | None = None
    write: Link | None = None
    devices: int = 1
    keep: bool = True
    """Whether requests leave pages for others: off, this is serving without a prefix cache."""


@dataclass(slots=True)
class _Seen:
    """What is known of one request while it runs."""

    number: int
    at: float
    first: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class _Flight:
    """A simulated fetch: when each batch arrives, and the end that counts."""

    op: FetchOp
    arrivals: list[tuple[float, int]]
    end: FetchEnded


@dataclass(slots=True)
class Shell:
    """One replay under way."""

    parts: Parts
    trace: Sequence[Arrival]
    now: float = 0.0
    next_arrival: int = 0
    pending: list[tuple[float, int, Event]] = field(default_factory=list)
    """Events to come: (time, order, event)."""
    order: int = 0
    device_free_at: float = 0.0
    fetches: dict[int, _Flight] = field(default_factory=dict)
    seen: dict[str, _Seen] = field(default_factory=dict)
    result: Result = field(default_factory=lambda: Result(Hits(), Hits()))
    ttft: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def run(self) -> Result:
        """Play the whole trace; deterministic."""
        begin = time.perf_counter()
        brain = self.parts.brain
        while True:
            for action in brain.tick(self.now, self._due()):
                self._carry_out(action)
            upcoming = self._upcoming(brain.next_wake(self.now))
            if upcoming is None:
                break
            self.now = max(self.now, upcoming)
        return self._finish(time.perf_counter() - begin)

    def _due(self) -> list[Event]:
        events: list[Event] = []
        while self.next_arrival < len(self.trace) and self.trace[self.next_arrival].at <= self.now:
            events.append(self._request(self.next_arrival))
            self.next_arrival += 1
        while self.pending and self.pending[0][0] <= self.now:
            event = heapq.heappop(self.pending)[2]
            if self._counts(event):
                events.append(event)
        return events

    def _counts(self, event: Event) -> bool:
        """Whether an event is not one of a fetch that was stopped before it."""
        if isinstance(event, FetchMoved):
            return event.id in self.fetches
        if isinstance(event, FetchEnded):
            flight = self.fetches.get(event.id)
            if flight is None or flight.end is not event:
                return False
            del self.fetches[event.id]
        return True

    def _upcoming(self, timer: float | None) -> float | None:
        times = [timer] if timer is not None else []
        if self.next_arrival < len(self.trace):
            times.append(self.trace[self.next_arrival].at)
        if self.pending:
            times.append(self.pending[0][0])
        return min(times, default=None)

    def _request(self, number: int) -> Request:
        arrival = self.trace[number]
        rid = str(number)
        self.seen[rid] = _Seen(number, arrival.at)
        return Request(
            rid=rid,
            namespace=namespace({"model": self.parts.model.fingerprint}),
            tokens=arrival.tokens(),
            sampling=Sampling(max_tokens=arrival.output_length, ignore_eos=True),
            store=self.parts.keep,
        )

    def _push(self, at: float, event: Event) -> None:
        self.order += 1
        heapq.heappush(self.pending, (at, self.order, event))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Launch(plan):
                self._launch(plan)
            case Output():
                self._output(action)
            case Query(rid, plan):
                present = [
                    self.parts.store.contains(keys) if self.parts.store else [False] * len(keys) for keys in plan.keys
                ]
                latency = self.parts.read.latency_s if self.parts.read else 0.0
                self._push(self.now + latency, Queried(rid, present))
            case Fetch(op):
                self._fetch(op)
            case StopFetch(id):
                self._stop(id)
            case Store(op):
                self._store(op)

    def _launch(self, plan: StepPlan) -> None:
        begin = max(self.now, self.device_free_at)
        horizon = self._events_within(begin) if plan.horizon > 1 else None
        steps, seconds = self.parts.machine.run(plan, horizon)
        self.device_free_at = begin + seconds
        self.result.gpu_seconds += seconds * self.parts.devices
        self.result.steps += steps
        tokens = tuple((FIRST_OUTPUT_TOKEN,) * steps if row.sample else () for row in plan.rows)
        copies = {copy.id: (True,) * len(copy.device) for copy in (*plan.loads, *plan.saves)}
        self._push(self.device_free_at, StepResult(plan.number, steps, tokens, None, copies))

    def _events_within(self, begin: float) -> float | None:
        upcoming = self._upcoming(None)
        return None if upcoming is None else upcoming - begin

    def _page_bytes(self, group: int) -> int:
        return self.parts.groups[group].token_bytes * self.parts.page_size

    def _fetch(self, op: FetchOp) -> None:
        assert self.parts.read is not None and self.parts.store is not None
        arrivals, done = [], 0
        for group, keys, _ in op.reads:
            for at in range(0, len(keys), READ_BATCH):
                count = len(keys[at : at + READ_BATCH])
                done += count
                arrivals.append((self.parts.read.send(self.now, count * self._page_bytes(group)), done))
                self._push(arrivals[-1][0], FetchMoved(op.id, done))
        found = [[DONE if held else MISSING for held in self.parts.store.contains(keys)] for _, keys, _ in op.reads]
        self.fetches[op.id] = _Flight(op, arrivals, FetchEnded(op.id, found))
        self._push(arrivals[-1][0] if arrivals else self.now, self.fetches[op.id].end)

    def _stop(self, id: int) -> None:
        """Let the batch that is under way arrive, and give up the rest."""
        flight = self.fetches.get(id)
        if flight is None:
            return
        at, left = next(((at, done) for at, done in flight.arrivals if at > self.now), (self.now, flight.op.pages))
        kept = []
        for results in flight.end.results:
            kept.append(list(results[:left]))
            left = max(0, left - len(results))
        flight.end = FetchEnded(id, kept)
        self._push(at, flight.end)

    def _store(self, op: StoreOp) -> None:
        assert self.parts.write is not None and self.parts.store is not None
        nbytes = self._page_bytes(op.group)
        arrives = self.parts.write.send(self.now, len(op.keys) * nbytes)
        self.parts.store.add(op.keys, nbytes)
        self._push(arrives, StoreEnded(op.id, [DONE] * len(op.keys)))

    def _output(self, output: Output) -> None:
        seen = self.seen[output.rid]
        if output.tokens and seen.first is None:
            seen.first = self.now
        seen.tokens += len(output.tokens)
        if output.finish is None:
            return
        del self.seen[output.rid]
        if output.finish not in ("stop", "length"):
            self.result.refused += 1
            return
        self.result.finished += 1
        self.result.output_tokens += seen.tokens
        self.at.append(seen.at)
        self.ttft.append((seen.first if seen.first is not None else self.now) - seen.at)
        self.latency.append(self.now - seen.at)
        self._count(output, seen.number)

    def _count(self, output: Output, number: int) -> None:
        late = number >= len(self.trace) // 2
        for hits in (self.result.all, self.result.last_half) if late else (self.result.all,):
            hits.input_tokens += output.prompt_tokens
            hits.device += output.cached.device
            hits.host += output.cached.host
            hits.storage += output.cached.storage

    def _finish(self, wall_s: float) -> Result:
        result, stats, parts = self.result, self.parts.cache.stats, self.parts
        result.requests = len(self.trace)
        result.wall_s, result.virtual_s = wall_s, self.now
        result.ttft_s, result.latency_s, result.at_s = self.ttft, self.latency, self.at
        page = sum(group.token_bytes for group in parts.groups) * parts.page_size
        moved = {"load": stats.loaded, "save": stats.saved, "store": stats.stored, "fetch": stats.fetched}
        result.bytes_moved = {direction: pages * page for direction, pages in moved.items()}
        result.token_bytes = sum(group.token_bytes for group in parts.groups)
        brain = parts.brain.stats()
        result.retractions = int(brain["retractions"])
        result.computed_tokens = int(brain["computed_tokens"])
        parts.cache.audit()
        return result
