"""One level of load after another: so many clients at once, requests at a rate, or a trace at its own times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from time import perf_counter

from stepwell_server.bench.asks import Answer, Ask
from stepwell_server.bench.figures import client, price, reasons, spread, window_end
from stepwell_server.bench.lag import Lag
from stepwell_server.bench.results import Level
from stepwell_server.bench.samples import Sample
from stepwell_server.bench.target import Target
from stepwell_server.bench.workloads import Trace, Workload

PAUSE_S = 0.1
"""How long a client waits after a failure, unless the server asks for more."""
MOST_PAUSE_S = 5.0
HOPELESS = 20
"""Failures without a single answer after which a level ends."""
WARM_CLIENTS = 4
"""Requests at once that warm up before a level without a concurrency."""


@dataclass(frozen=True, slots=True)
class Step:
    """A level to measure; `value` is of `kind`, as in `results.Level`."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do at each level."""

    workload: Workload
    steps: tuple[Step, ...]
    requests: int | None
    """None: as many as go into `seconds`, or a few for each client."""
    seconds: float | None
    warmup: int
    seed: str
    gpus: int | None = None
    """None: nobody asked for a price."""
    gpu_price: float | None = None

    def wanted(self, step: Step) -> int | None:
        """Requests of a level; None: no limit but time."""
        if self.requests is not None or self.seconds is not None or isinstance(self.workload, Trace):
            return self.requests
        return max(16, 4 * int(step.value)) if step.kind == "concurrency" else 64


Heard = Callable[[Sample], None]


@dataclass
class Run:
    """A level while it runs."""

    target: Target
    heard: Heard
    wanted: int | None
    until: float
    samples: list[Sample] = field(default_factory=list)
    begun: int = 0
    running: int = 0
    most_running: int = 0
    answered: bool = False

    def more(self) -> bool:
        """Whether another request is to be sent."""
        if self.wanted is not None and self.begun >= self.wanted:
            return False
        return perf_counter() < self.until and not self.hopeless

    @property
    def hopeless(self) -> bool:
        """Whether nothing but failures came, and many."""
        return not self.answered and len(self.samples) >= HOPELESS

    async def put(self, ask: Ask, due: float) -> Sample:
        """One request."""
        self.begun += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            sample = await self.target.ask(ask, due)
        finally:
            self.running -= 1
        self.answered |= sample.failure is None
        self.samples.append(sample)
        self.heard(sample)
        return sample

    async def clients(self, workload: Workload, salt: str, number: int) -> None:
        """So many clients, each with its next request once the one before has ended."""
        async with asyncio.TaskGroup() as group:
            for at in range(number):
                group.create_task(self._client(workload, salt, at))

    async def timed(self, arrivals: Iterator[tuple[float, Ask]], begin: float) -> None:
        """Each request at its time, however many are under way."""
        async with asyncio.TaskGroup() as group:
            for after, ask in arrivals:
                await asyncio.sleep(begin + after - perf_counter())
                if begin + after >= self.until or not self.more():
                    return
                group.create_task(self.put(ask, begin + after))

    async def _client(self, workload: Workload, salt: str, number: int) -> None:
        asks = workload.asks(salt, number)
        answer: Answer | None = None
        while self.more():
            try:
                ask = asks.send(answer)
            except StopIteration:
                return
            sample = await self.put(ask, perf_counter())
            answer = sample.answer if sample.failure is None else None
            if answer is None:
                await asyncio.sleep(min(MOST_PAUSE_S, max(PAUSE_S, sample.retry_after)))


async def warm(target: Target, plan: Plan, step: Step, heard: Heard) -> None:
    """Requests that do not count, as many at once as the level will have."""
    if plan.warmup:
        clients = int(step.value) if step.kind == "concurrency" else WARM_CLIENTS
        run = Run(target, heard, plan.warmup * clients, float("inf"))
        await run.clients(plan.workload, f"{plan.seed}/{step}/warm", clients)


async def measure(target: Target, plan: Plan, step: Step, heard: Heard, stop: asyncio.Event) -> Level:
    """One level; where `stop` is set meanwhile, what had ended by then."""
    begin = perf_counter()
    until = float("inf") if plan.seconds is None else begin + plan.seconds
    run = Run(target, heard, plan.wanted(step), until)
    async with Lag() as lag:
        finished = await unless(stop, _load(run, plan, step, begin))
        cpu = lag.cpu_share() if target.own_process else None
    return _level(run, plan, step, begin, lag, cpu, cut=not finished)


async def unless(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Do it, or break it off when told to; answers whether it came to its end."""
    task, told = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        finished = task.done()
        task.cancel()
        await asyncio.gather(task, told, return_exceptions=True)
    if finished:
        task.result()
    return finished


async def _load(run: Run, plan: Plan, step: Step, begin: float) -> None:
    salt = f"{plan.seed}/{step}"
    if step.kind == "concurrency":
        await run.clients(plan.workload, salt, int(step.value))
    elif isinstance(plan.workload, Trace):
        workload = plan.workload
        arrivals = islice(workload.arrivals, run.wanted)
        await run.timed(((one.at / step.value, workload.ask(salt, one)) for one in arrivals), begin)
    else:
        await run.timed(_poisson(plan.workload, salt, step.value), begin)


def _poisson(workload: Workload, salt: str, rate: float) -> Iterator[tuple[float, Ask]]:
    """Arrivals that know nothing of each other; each is the first request of another client."""
    dice, at = random.Random(f"{salt}/times"), 0.0
    for number in count():
        yield at, next(workload.asks(salt, number))
        at += dice.expovariate(rate)


def _level(run: Run, plan: Plan, step: Step, begin: float, lag: Lag, cpu: float | None, *, cut: bool) -> Level:
    good = [one for one in run.samples if one.failure is None]
    end = window_end(run.samples, begin, plan.seconds)
    seconds = max(1e-9, end - begin)
    output = sum(one.output_until(end) for one in good)
    prompts = [one.prompt for one in good if one.prompt is not None]
    cached = [one.cached for one in good if one.cached is not None]
    begun = sum(one.prompt or 0 for one in good if one.arrivals[0] <= end)
    arrivals = sum(len(one.arrivals) for one in good)
    total = (output + begun) / seconds if len(prompts) == len(good) else None
    return Level(
        kind=step.kind,
        value=step.value,
        seconds=round(seconds, 6),
        completed=len(good),
        failed=len(run.samples) - len(good),
        failures=reasons(run.samples),
        cut=cut,
        prompt_tokens=sum(prompts) if len(prompts) == len(good) else None,
        cached_tokens=sum(cached) if len(cached) == len(good) else None,
        output_tokens=sum(one.output for one in good),
        requests_per_s=round(sum(one.end <= end for one in good) / seconds, 4),
        output_tokens_per_s=round(output / seconds, 3),
        total_tokens_per_s=None if total is None else round(total, 3),
        tokens_per_arrival=round(sum(one.output for one in good) / max(1, arrivals), 3),
        ttft_s=spread([one.ttft for one in good]),
        itl_s=spread([gap for one in good for gap in one.gaps()]),
        tpot_s=spread([tpot for one in good if (tpot := one.tpot) is not None]),
        e2e_s=spread([one.latency for one in good]),
        client=client(good, lag.late, cpu, run.most_running),
        price=None if plan.gpus is None else price(output / seconds, total, plan.gpus, plan.gpu_price),
    )
