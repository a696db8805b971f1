"""A world for a brain: real cache, real pages on the sim runner, storage in a dictionary, a clock that counts turns."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from stepwell.abc.evict import EvictionPolicy, Segment, take_pages
from stepwell.abc.prefetch import FetchProgress, PrefetchPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.runner import StepPlan, StepResult
from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.builtin.sim import SimConfig, SimRunner, SimStep, answer
from stepwell.cache.arena import Arena
from stepwell.cache.cache import Cache, CacheShape, FetchOp
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
    SavesEnded,
    StopFetch,
    Store,
    StoreEnded,
)
from stepwell.engine.brain import Brain, BrainSettings
from stepwell.engine.messages import Abort, Output
from stepwell.offers import NoConfig
from stepwell.schedule.request import Request
from stepwell.types import DONE, MISSING, Failed, PageKey, PageResult, Sampling, Tier

NAMESPACE = namespace({"model": "world"})


class Oldest(EvictionPolicy):
    """Least recently used, small and plain."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Segment, None] = OrderedDict()

    def on_insert(self, segment: Segment) -> None:
        self._queue[segment] = None

    def on_hit(self, segment: Segment) -> None:
        self._queue.pop(segment, None)
        self._queue[segment] = None

    def on_remove(self, segment: Segment) -> None:
        self._queue.pop(segment, None)

    def victims(self, pages: int) -> Iterable[Segment]:
        return take_pages(list(self._queue), pages)


class Through(WritePolicy):
    """Everything down at once, or nothing at all."""

    def __init__(self, save: bool = True, store: bool = True) -> None:
        self._edges = {Edge.SAVE: save, Edge.STORE: store}

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NOW if self._edges[edge] else Decision.NEVER


class TheEnd(RetentionPolicy):
    """The window at the end, and one page below where the end is a page's."""

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        whole = length // page * page
        return [whole, whole - page] if whole == length and whole > page else [whole]


class Patient(PrefetchPolicy):
    """Waits until all is there, at most `patience` seconds."""

    def __init__(self, patience: float = 1e9, threshold: int = 1, max_pages: int = 4096) -> None:
        self.patience, self.threshold, self.max_pages = patience, threshold, max_pages

    def start(self, missing_tokens: int) -> bool:
        return missing_tokens >= self.threshold

    def stop(self, progress: FetchProgress) -> bool:
        return progress.waited_s >= self.patience


@dataclass
class Moving:
    op: FetchOp
    due: int
    stopped: bool = False
    done: int = 0
    results: list[list[PageResult]] = field(default_factory=list)


def tokens(*parts: object) -> bytes:
    """int32 bytes of numbers, ranges and texts in a row."""
    ids = chain.from_iterable(
        part.encode() if isinstance(part, str) else [part] if isinstance(part, int) else part for part in parts
    )
    return np.array(list(ids), np.int32).tobytes()


class World:
    """Each turn is one tick and then news for the next: the oldest step's result, what storage did."""

    def __init__(
        self,
        sim: SimConfig | None = None,
        *,
        device: int | tuple[int, ...] = 64,
        host: int | tuple[int, ...] = 0,
        page: int = 4,
        policy: SchedulePolicy | None = None,
        prefetch: PrefetchPolicy | None = None,
        write: WritePolicy | None = None,
        retain: RetentionPolicy | None = None,
        storage: dict[PageKey, bytes] | None = None,
        fetch_turns: int = 2,
        flaky: float = 0.0,
        lag: int = 1,
        audit: bool = True,
        runner: type[SimRunner] = SimRunner,
        **settings: int | float,
    ) -> None:
        self.sim = sim or SimConfig(token_bytes=8, eos_every=0)
        groups = self.sim.groups
        pages = device if isinstance(device, tuple) else (device,) * len(groups)
        hosts = host if isinstance(host, tuple) else (host,) * len(groups)
        self.store = storage
        if storage is not None and prefetch is None:
            prefetch = Patient()
        self.cache = Cache(
            CacheShape(groups, page, pages, hosts),
            evict=lambda tier, group: Oldest(),
            write=write or Through(),
            retain=retain or TheEnd(),
            storage=storage is not None,
        )
        self.runner = runner(self.sim)
        limits = BrainSettings(
            chunk=self.sim.chunk,
            depth=self.sim.depth,
            max_steps=self.sim.max_steps,
            late_saves=self.runner.late_saves,
        )
        self.settings = replace(limits, **settings)
        self.policy = policy or Fcfs(NoConfig(), None)
        self.brain = Brain(
            model=self.runner.model, cache=self.cache, policy=self.policy, prefetch=prefetch, settings=self.settings
        )
        named = {group.name: count for group, count in zip(groups, pages, strict=True)}
        self.runner.open(page, named, self.settings.max_running, lambda: None)
        self.arena = Arena.create(groups, page, hosts)
        if any(hosts):
            self.runner.pin(self.arena)
        self.page, self.lag, self.fetch_turns, self.audit = page, lag, fetch_turns, audit
        self._luck = random.Random(7)
        self._flaky = flaky
        self.turns = 0
        self.news: list[Event] = []
        self.steps: deque[SimStep] = deque()
        self.moving: dict[int, Moving] = {}
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[Output]] = {}
        self.finished_at: dict[str, int] = {}
        self.started_at: dict[str, int] = {}
        self.copied = {"load": 0, "save": 0}
        self.actions: list[Action] = []
        self._slots: dict[int, int] = {}
        self._names = 0

    # --- what a test does --------------------------------------------------------------------------------------

    def request(self, prompt: bytes | str, rid: str | None = None, **options: object) -> Request:
        """A greedy request; `max_tokens` and other sampling options are taken out of `options`."""
        self._names += 1
        sampling = {name: options.pop(name) for name in list(options) if name in Sampling.__slots__}
        sampling.setdefault("max_tokens", 8)
        body = tokens(prompt) if isinstance(prompt, str) else prompt
        options.setdefault("namespace", NAMESPACE)
        return Request(rid=rid or f"r{self._names}", tokens=body, sampling=Sampling(**sampling), **options)

    def submit(self, prompt: bytes | str | Request, rid: str | None = None, **options: object) -> str:
        """Put a request into the next turn's news."""
        request = prompt if isinstance(prompt, Request) else self.request(prompt, rid, **options)
        self.requests.setdefault(request.rid, request)
        self.news.append(request)
        return request.rid

    def abort(self, rid: str, finish: str = "abort") -> None:
        self.news.append(Abort(rid, finish))

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.turns += 1
            events, self.news = self.news, []
            self.actions = self.brain.tick(float(self.turns), events)
            for action in self.actions:
                self._carry_out(action)
            if self.audit:
                self.cache.audit()
            self._move()
            self._land()
            if saved := self.runner.saved():
                self.news.append(SavesEnded(saved))

    def run(self, limit: int = 3000) -> None:
        """Turns until nothing is left to do. A world that would sleep while somebody waits is a failure."""
        while not (self.brain.idle and not self.news and not self.steps and not self.moving):
            quiet = not (self.news or self.steps or self.moving or self.brain.stats()["save_pages_in_flight"])
            assert not quiet or self.brain.next_wake(self.turns) is not None, "asleep with work left"
            assert self.turns < limit, f"not done after {limit} turns"
            self.turn()

    # --- what a test asks --------------------------------------------------------------------------------------

    def said(self, rid: str) -> tuple[int, ...]:
        return tuple(chain.from_iterable(output.tokens for output in self.outputs.get(rid, ())))

    def last(self, rid: str) -> Output:
        return self.outputs[rid][-1]

    def truth(self, rid: str) -> tuple[int, ...]:
        request = self.requests[rid]
        return answer(self.sim, request.tokens, request.sampling)

    def check(self, *rids: str) -> None:
        """These (or all) requests ended by themselves and said what a run without any cache says."""
        for rid in rids or self.requests:
            assert self.last(rid).finish in ("stop", "length"), self.last(rid)
            assert self.said(rid) == self.truth(rid), rid

    def clean(self) -> None:
        """Nothing is owned any more once the cache forgets all."""
        assert self.brain.idle
        self.cache.flush()
        self.cache.audit()
        for tier in (Tier.DEVICE, Tier.HOST):
            for usage in self.cache.usage()[tier]:
                assert usage.free == usage.total, (tier, usage)

    def computed(self, rid: str) -> int:
        """Prompt tokens that were computed for a request, over all its rows."""
        return self._computed.get(rid, 0)

    # --- the rest of the machine -------------------------------------------------------------------------------

    _computed: dict[str, int]

    def _carry_out(self, action: Action) -> None:
        match action:
            case Launch(plan):
                self._check_plan(plan)
                self.plans.append(plan)
                step = self.runner.launch(plan)
                assert isinstance(step, SimStep)
                self.steps.append(step)
            case Output():
                assert not (action.rid in self.outputs and self.outputs[action.rid][-1].finish), "said after the end"
                self.outputs.setdefault(action.rid, []).append(action)
                self.started_at.setdefault(action.rid, self.turns)
                if action.finish:
                    self.finished_at[action.rid] = self.turns
            case Query(rid, plan):
                assert self.store is not None
                held = [[key in self.store for key in keys] for keys in plan.keys]
                self.news.append(Queried(rid, held))
            case Fetch(op):
                self.moving[op.id] = Moving(op, self.turns + self.fetch_turns)
            case StopFetch(id):
                if id in self.moving:
                    self.moving[id].stopped = True
            case Store(op):
                assert self.store is not None
                for key, slot in zip(op.keys, op.host.tolist(), strict=True):
                    self.store[key] = bytes(self._slot(op.group, slot))
                self.news.append(StoreEnded(op.id, [DONE] * len(op.keys)))

    def _move(self) -> None:
        """Storage reads one batch of each fetch a turn once `fetch_turns` have passed."""
        for id, moving in list(self.moving.items()):
            if moving.due > self.turns:
                continue
            at = len(moving.results)
            if at < len(moving.op.reads) and not moving.stopped:
                moving.results.append(self._read(*moving.op.reads[at]))
                moving.done += len(moving.results[-1])
                self.news.append(FetchMoved(id, moving.done))
            else:
                del self.moving[id]
                self.news.append(FetchEnded(id, moving.results))

    def _read(self, group: int, keys: Sequence[PageKey], host: np.ndarray) -> list[PageResult]:
        results: list[PageResult] = []
        for key, slot in zip(keys, host.tolist(), strict=True):
            page = self.store.get(key)
            if self._luck.random() < self._flaky:
                results.append(self._luck.choice((MISSING, Failed("out of luck"))))
                continue
            if page is not None:
                self._slot(group, slot)[:] = page
            results.append(MISSING if page is None else DONE)
        return results

    def _slot(self, group: int, slot: int) -> memoryview:
        offset, stride, payload = self.arena.slots(group)
        start = offset + slot * stride
        return self.arena.memory[start : start + payload]

    def _land(self) -> None:
        """The oldest step ends once `lag` later ones are in flight, or nothing else goes on."""
        launched = any(isinstance(action, Launch) for action in self.actions)
        if self.steps and (len(self.steps) > self.lag or not launched):
            result = self.steps.popleft().poll()
            assert result is not None
            self.results.append(result)
            self.news.append(result)

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.rows or plan.saves, "a step with nothing to do"
        assert len(self.steps) < self.settings.depth
        budget = max(self.page, min(self.settings.max_prefill_tokens, self.settings.chunk))
        for slot in plan.closes:
            self._slots.pop(slot, None)
        for opened in plan.opens:
            assert opened.slot not in self._slots, "slot is taken"
            self._slots[opened.slot] = len(opened.prompt) // 4
        fresh = sum(row.count for row in plan.rows if row.tokens is not None)
        assert fresh <= budget, f"{fresh} prompt tokens in a step"
        slots = [row.slot for row in plan.rows]
        assert len(set(slots)) == len(slots), "two rows of one request"
        for row in plan.rows:
            assert row.count > 0
            if row.tokens is not None:
                assert len(row.tokens) == 4 * row.count
                assert row.start + row.count <= self._slots[row.slot]
                assert row.sample == (row.start + row.count == self._slots[row.slot])
        self.copied["load"] += sum(len(copy.device) for copy in plan.loads)
        self.copied["save"] += sum(len(copy.device) for copy in plan.saves)


@pytest.fixture
def world() -> Iterator[type[World]]:
    """The class; the host memory of what a test makes of it goes with the test."""
    arenas: list[Arena] = []

    class Housed(World):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            arenas.append(self.arena)

    yield Housed
    for arena in arenas:
        arena.close()


@pytest.fixture
def patient() -> type[Patient]:
    return Patient
