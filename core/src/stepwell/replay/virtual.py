"""The timed replay: the brain's shell on a virtual clock, with a simulated device and simulated storage."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell.abc.runner import ModelInfo, PageCopy, Row, StepPlan, StepResult
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
from stepwell.replay.restorable import Restoring
from stepwell.replay.result import Group, Hits, Result
from stepwell.replay.trace import FIRST_OUTPUT_TOKEN, Arrival
from stepwell.schedule.request import Request
from stepwell.schedule.timing import Machine
from stepwell.types import DONE, MISSING, TOKEN_BYTES, GroupSpec, PageKey, PageResult, Sampling, Tier

READ_BATCH = 64
"""Pages a simulated read brings at once, as the live storage threads do."""
COUNTERS = {"load": "bytes_loaded", "save": "bytes_saved", "store": "bytes_stored", "fetch": "bytes_fetched"}
"""Where the brain counts what moved in each direction."""


@dataclass(slots=True)
class Parts:
    """What a replay runs on."""

    brain: Brain
    cache: Cache
    model: ModelInfo
    groups: tuple[GroupSpec, ...]
    page_bytes: tuple[int, ...]
    """Of a page, by group."""
    machine: Machine
    store: SimStore | None = None
    read: Link | None = None
    write: Link | None = None
    devices: int = 1
    keep: bool = True
    """Whether requests leave pages for others: off, this is serving without a prefix cache."""
    sample_every: int = 0
    """Finished requests between two counts of those that could be restored; 0: none is made."""


@dataclass(slots=True)
class _Seen:
    """What is known of one request while it runs."""

    number: int
    at: float
    first: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class _Flight:
    """A simulated fetch: batch by batch, so that fetches share the link and one that is stopped leaves it at once."""

    op: FetchOp
    batches: list[tuple[int, tuple[PageKey, ...]]]
    """Read of the op and keys, of each batch that has not begun."""
    found: list[list[PageResult]]


@dataclass(slots=True)
class Shell:
    """One replay under way."""

    parts: Parts
    trace: Sequence[Arrival]
    now: float = 0.0
    next_arrival: int = 0
    pending: list[tuple[float, int, Callable[[], Event]]] = field(default_factory=list)
    """What is to come: (time, order, what makes the event then)."""
    order: int = 0
    device_free_at: float = 0.0
    fetches: dict[int, _Flight] = field(default_factory=dict)
    seen: dict[str, _Seen] = field(default_factory=dict)
    slots: dict[int, Arrival] = field(default_factory=dict)
    """Whose turn it is in each slot, where the trace tells answers."""
    result: Result = field(default_factory=lambda: Result(Hits(), Hits()))
    ttft: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    told: bool = field(init=False)
    """Whether the trace tells any answer."""
    namespace: bytes = field(init=False)
    restoring: Restoring = field(init=False)
    groups: list[Group] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.parts
        self.told = any(arrival.answer is not None for arrival in self.trace)
        self.namespace = namespace({"model": parts.model.fingerprint})
        self.restoring = Restoring(parts.cache, self.namespace, parts.sample_every, self._computed)
        shape = parts.cache.shape
        self.groups = [
            Group(len(spec.layers), spec.token_bytes, nbytes, device, host)
            for spec, nbytes, device, host in zip(
                parts.groups, parts.page_bytes, shape.device_pages, shape.host_pages, strict=True
            )
        ]

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
            events.append(heapq.heappop(self.pending)[2]())
        return events

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
            namespace=self.namespace,
            tokens=arrival.tokens(),
            sampling=Sampling(max_tokens=arrival.output_length, ignore_eos=True, seed=number),
            store=self.parts.keep,
        )

    def _push(self, at: float, event: Callable[[], Event]) -> None:
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
                self._push(self.now + latency, partial(Queried, rid, present))
            case Fetch(op):
                self._fetch(op)
            case StopFetch(id):
                if id in self.fetches:
                    self.fetches[id].batches.clear()
            case Store(op):
                self._store(op)

    def _launch(self, plan: StepPlan) -> None:
        begin = max(self.now, self.device_free_at)
        horizon = self._events_within(begin) if plan.horizon > 1 else None
        steps, seconds = self.parts.machine.run(plan, horizon)
        self.device_free_at = begin + seconds
        self.result.gpu_seconds += seconds * self.parts.devices
        self.result.steps += steps
        for row in reversed(plan.rows):  # decode rows, which bring no tokens, come first
            if row.tokens is None:
                break
            self.result.computed_tokens += row.count
        tokens = self._sampled(plan, steps)
        copies = self._copied("load", plan.loads) | self._copied("save", plan.saves)
        self._push(self.device_free_at, partial(StepResult, plan.number, steps, tokens, None, copies))

    def _sampled(self, plan: StepPlan, steps: int) -> tuple[tuple[int, ...], ...]:
        """What the rows say next: what the trace tells of an answer, else tokens of nobody's prompt."""
        same = (FIRST_OUTPUT_TOKEN,) * steps
        if not self.told:
            return tuple([same if row.sample else () for row in plan.rows])
        for opened in plan.opens:
            assert opened.sampling.seed is not None
            self.slots[opened.slot] = self.trace[opened.sampling.seed]
        return tuple([self._answer(row, steps, same) if row.sample else () for row in plan.rows])

    def _answer(self, row: Row, steps: int, same: tuple[int, ...]) -> tuple[int, ...]:
        arrival = self.slots[row.slot]
        if arrival.answer is None:
            return same
        at = row.start + row.count - arrival.input_length
        return arrival.answer[at : at + steps]

    def _computed(self, number: int) -> bytes:
        """All tokens of a finished request that have K and V: the last one sampled was not computed."""
        arrival = self.trace[number]
        return arrival.tokens() + arrival.answer_tokens()[:-TOKEN_BYTES]

    def _copied(self, direction: str, copies: Sequence[PageCopy]) -> dict[int, tuple[bool, ...]]:
        for copy in copies:
            self._count_moved(direction, copy.group, len(copy.device))
        return {copy.id: (True,) * len(copy.device) for copy in copies}

    def _count_moved(self, direction: str, group: int, pages: int) -> None:
        self.groups[group].moved[direction] += pages * self.parts.page_bytes[group]

    def _events_within(self, begin: float) -> float | None:
        upcoming = self._upcoming(None)
        return None if upcoming is None else upcoming - begin

    def _fetch(self, op: FetchOp) -> None:
        batches = [
            (read, keys[at : at + READ_BATCH])
            for read, (_, keys, _) in enumerate(op.reads)
            for at in range(0, len(keys), READ_BATCH)
        ]
        flight = self.fetches[op.id] = _Flight(op, batches, [[] for _ in op.reads])
        self._read_on(flight)

    def _read_on(self, flight: _Flight) -> None:
        """Begin the next batch; what storage holds then is what comes."""
        assert self.parts.read is not None and self.parts.store is not None
        read, keys = flight.batches.pop(0)
        group = flight.op.reads[read][0]
        results = [DONE if held else MISSING for held in self.parts.store.contains(keys)]
        self._count_moved("fetch", group, results.count(DONE))
        nbytes = results.count(DONE) * self.parts.page_bytes[group]
        self._push(self.parts.read.send(self.now, nbytes), partial(self._landed, flight, read, results))

    def _landed(self, flight: _Flight, read: int, results: Sequence[PageResult]) -> Event:
        """A batch has arrived: what it says, with the next one on its way."""
        flight.found[read] += results
        if flight.batches:
            self._read_on(flight)
            return FetchMoved(flight.op.id, sum(one.count(DONE) for one in flight.found))
        del self.fetches[flight.op.id]
        return FetchEnded(flight.op.id, flight.found)

    def _store(self, op: StoreOp) -> None:
        assert self.parts.write is not None
        self._count_moved("store", op.group, len(op.keys))
        nbytes = len(op.keys) * self.parts.page_bytes[op.group]
        self._push(self.parts.write.send(self.now, nbytes), partial(self._stored, op))

    def _stored(self, op: StoreOp) -> Event:
        assert self.parts.store is not None
        self.parts.store.add(op.keys, self.parts.page_bytes[op.group])
        return StoreEnded(op.id, [DONE] * len(op.keys))

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
        self.restoring.finished(seen.number)

    def _count(self, output: Output, number: int) -> None:
        late = number >= len(self.trace) // 2
        for hits in (self.result.all, self.result.last_half) if late else (self.result.all,):
            hits.input_tokens += output.prompt_tokens
            hits.device += output.cached.device
            hits.host += output.cached.host
            hits.storage += output.cached.storage

    def _finish(self, wall_s: float) -> Result:
        result, parts = self.result, self.parts
        result.requests = len(self.trace)
        result.wall_s, result.virtual_s = wall_s, self.now
        result.ttft_s, result.latency_s, result.at_s = self.ttft, self.latency, self.at
        brain = parts.brain.stats()
        for direction, counter in COUNTERS.items():
            result.bytes_moved[direction] = int(brain[counter])
        result.token_bytes = sum(group.token_bytes for group in parts.groups)
        result.retractions = int(brain["retractions"])
        parts.cache.audit()
        result.groups = self._held()
        if parts.sample_every:
            result.restorable = self.restoring.end()
        return result

    def _held(self) -> dict[str, Group]:
        """The groups, with what each tier holds of them in the end."""
        parts = self.parts
        usage = parts.cache.usage()
        stored = parts.store.pages() if parts.store else Counter[bytes]()
        for at, (spec, group) in enumerate(zip(parts.groups, self.groups, strict=True)):
            for tier in (Tier.DEVICE, Tier.HOST):
                used = usage[tier][at]
                group.held[tier.value] = used.total - used.free - used.limbo
            group.held[Tier.STORAGE.value] = stored[spec.tag]
        return {spec.name: group for spec, group in zip(parts.groups, self.groups, strict=True)}
