"""The timed replay: the brain's shell on a virtual clock, with a simulated device and simulated storage."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell.abc.runner import ModelInfo, PageCopy, Row, SlotOpen, StepPlan, StepResult
from stepwell.cache.cache import Cache
from stepwell.cache.keys import namespace
from stepwell.engine.actions import Action, Event, Fetch, Launch, Query, StopFetch, Store
from stepwell.engine.brain import Brain
from stepwell.engine.messages import Output
from stepwell.replay.affinity import Experts
from stepwell.replay.restorable import Restoring
from stepwell.replay.result import Group, Hits, Result
from stepwell.replay.seen import Steps, Visits
from stepwell.replay.trace import FIRST_OUTPUT_TOKEN, Arrival
from stepwell.replay.transfers import SimStorage, Transfers
from stepwell.schedule.request import Request
from stepwell.schedule.timing import Machine
from stepwell.types import TOKEN_BYTES, GroupSpec, Sampling, Tier

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
    storage: SimStorage | None = None
    experts: Experts | None = None
    """What steps read of a model with experts."""
    devices: int = 1
    keep: bool = True
    """Whether requests leave pages for others: off, this is serving without a prefix cache."""
    sample_every: int = 0
    """Finished requests between two counts of those that could be restored; 0: none is made."""


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
    visits: Visits = field(default_factory=Visits)
    steps: Steps = field(init=False)
    transfers: Transfers = field(init=False)
    result: Result = field(default_factory=lambda: Result(Hits(), Hits()))
    told: bool = field(init=False)
    """Whether the trace tells any answer."""
    namespace: bytes = field(init=False)
    restoring: Restoring = field(init=False)
    groups: list[Group] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.parts
        self.told = any(arrival.answer is not None for arrival in self.trace)
        self.namespace = namespace({"model": parts.model.fingerprint})
        self.steps = Steps(parts.experts)
        self.transfers = Transfers(parts.storage, parts.page_bytes, lambda: self.now, self._push, self._count_moved)
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
        self.visits.arrived(rid, number, arrival.at)
        return Request(
            rid=rid,
            namespace=self.namespace,
            tokens=arrival.tokens(),
            sampling=Sampling(max_tokens=arrival.output_length, ignore_eos=True, seed=number),
            store=self.parts.keep,
            priority=arrival.priority,
            routing_key=arrival.routing_key,
            tenant=arrival.tenant,
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
            case Query() | Fetch() | StopFetch() | Store():
                self.transfers.take(action)

    def _launch(self, plan: StepPlan) -> None:
        for opened in plan.opens:
            number = _number(opened)
            self.steps.slots[opened.slot] = self.trace[number]
            self.visits.admitted(str(number), self.now)
        begin = max(self.now, self.device_free_at)
        horizon = self._events_within(begin) if plan.horizon > 1 else None
        share = self.steps.share(plan)
        steps, seconds = self.parts.machine.run(plan, horizon, share)
        self.device_free_at = begin + seconds
        self.result.gpu_seconds += seconds * self.parts.devices
        self.steps.done(plan, steps, seconds, share)
        tokens = self._sampled(plan, steps)
        copies = self._copied("load", plan.loads) | self._copied("save", plan.saves)
        self._push(self.device_free_at, partial(StepResult, plan.number, steps, tokens, None, copies))

    def _sampled(self, plan: StepPlan, steps: int) -> tuple[tuple[int, ...], ...]:
        """What the rows say next: what the trace tells of an answer, else tokens of nobody's prompt."""
        same = (FIRST_OUTPUT_TOKEN,) * steps
        if not self.told:
            return tuple([same if row.sample else () for row in plan.rows])
        return tuple([self._answer(row, steps, same) if row.sample else () for row in plan.rows])

    def _answer(self, row: Row, steps: int, same: tuple[int, ...]) -> tuple[int, ...]:
        arrival = self.steps.slots[row.slot]
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

    def _output(self, output: Output) -> None:
        number = self.visits.said(output, self.now, self.result)
        if number is not None:
            self._count(output, number)
            self.restoring.finished(number)

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
        visits = self.visits
        result.at_s, result.waits_s = visits.at, visits.waits
        result.ttft_s, result.latency_s = visits.ttft, visits.latency
        self.steps.tell(result)
        brain = parts.brain.stats()
        for direction, counter in COUNTERS.items():
            result.bytes_moved[direction] = int(brain[counter])
        result.token_bytes = sum(group.token_bytes for group in parts.groups)
        result.retractions = int(brain["retractions"])
        result.passes_worst = int(brain["passes_worst"])
        counters = parts.brain.counters
        result.policy_faults, result.last_fault = counters.policy_faults, counters.last_fault
        parts.cache.audit()
        result.groups = self._held()
        if parts.sample_every:
            result.restorable = self.restoring.end()
        return result

    def _held(self) -> dict[str, Group]:
        """The groups, with what each tier holds of them in the end."""
        parts = self.parts
        usage = parts.cache.usage()
        stored = parts.storage.held.pages() if parts.storage else Counter[bytes]()
        for at, (spec, group) in enumerate(zip(parts.groups, self.groups, strict=True)):
            for tier in (Tier.DEVICE, Tier.HOST):
                used = usage[tier][at]
                group.held[tier.value] = used.total - used.free - used.limbo
            group.held[Tier.STORAGE.value] = stored[spec.tag]
        return {spec.name: group for spec, group in zip(parts.groups, self.groups, strict=True)}


def _number(opened: SlotOpen) -> int:
    """The request of the trace that got the slot: a replay's seeds are their numbers."""
    assert opened.sampling.seed is not None
    return opened.sampling.seed
