"""Nobody waits for ever: later requests go first as often as a policy declares, and not oftener."""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path

import pytest

from stepwell.abc.schedule import SchedulePolicy
from stepwell.builtin.sim import SimConfig
from stepwell.config import Config
from stepwell.engine.making import Place, make
from stepwell.plugins import Registry, load

HOT = "h" * 100
BOUND = 16


class HotFirst(SchedulePolicy):
    """What is cached goes first, whatever comes."""

    max_passes = BOUND

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: (-view.cached(request), -request.order))


class LatestFirst(SchedulePolicy):
    max_passes = BOUND

    def order(self, waiting, view):
        return reversed(waiting)

    def look_past(self, request, misfits, view):
        return True


class Urgent(SchedulePolicy):
    """The less urgent give way, in their pages and in the queue."""

    max_passes = BOUND

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: (-request.priority, request.order))

    def preempt(self, request, running, view):
        return [other for other in reversed(running) if other.priority < request.priority]


OWN = {"hot-first": HotFirst, "latest-first": LatestFirst, "urgent": Urgent}


@cache
def registry() -> Registry:
    return load()


def offered() -> list[str]:
    return [*OWN, *registry().offers("schedule")]


def made(name: str) -> SchedulePolicy:
    """As an engine makes it, with a bound that a test can reach."""
    if name in OWN:
        return OWN[name]()
    fields = registry().offers("schedule")[name].config.__dataclass_fields__
    table: dict[str, object] = {"use": name}
    if "max_passes" in fields:
        table["max_passes"] = BOUND
    if "order" in fields:
        table["order"] = {"use": "fcfs"}
    config = Config.load(None, {}, extra={"schedule": table})
    choice = config.choose("schedule", "schedule", registry(), "fcfs")
    return make(choice, SchedulePolicy, Place(name, "cpu", lambda: Path("unused")))


class Watched:
    """Who is admitted, in order, told by the prompts with which slots are opened."""

    def __init__(self, w) -> None:
        self.w = w
        self.arrived: dict[str, int] = {}
        self.passes: dict[str, int] = {}
        """How often a later one was admitted while a request waited; counted here, not by the queue."""
        self._seen = len(w.plans)
        self._waits: dict[str, None] = {}

    def submit(self, prompt, rid, **options):
        self.arrived[rid] = len(self.arrived)
        self.passes[rid] = 0
        self._waits[rid] = None
        self.w.submit(prompt, rid, **options)

    def turn(self):
        waited = set(self._waits)
        self.w.turn()
        for plan in self.w.plans[self._seen :]:
            for opened in plan.opens:
                rid = next(r for r in waited if opened.prompt.startswith(self.w.requests[r].tokens))
                waited.discard(rid)
                for other in waited:
                    self.passes[other] += self.arrived[other] < self.arrived[rid]
        self._seen = len(self.w.plans)
        jobs = self.w.brain._jobs
        self._waits = {rid: None for rid, job in jobs.items() if job.seat is None}


@pytest.mark.parametrize("urgent", [0, 5], ids=["equal", "urgent"])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", offered())
def test_b120_a_hot_prefix_passes_cold_requests_as_often_as_declared(world, name, slots, urgent):
    """A warm request comes in each turn, of one key and tenant, as urgent as the cold ones or more."""
    policy = made(name)
    w = world(SimConfig(token_bytes=8, eos_every=0), device=300, max_running=slots, policy=policy, audit=False)
    w.submit(HOT + "first", max_tokens=1)
    w.run()
    watched = Watched(w)
    for number in range(slots):
        watched.submit(HOT + f"running{number}", f"running{number}", max_tokens=6, routing_key="hot", tenant="hot")
    watched.turn()
    cold = [f"cold{number}" for number in range(3)]
    for number, rid in enumerate(cold):
        watched.submit(f"{number}cold" * 6, rid, max_tokens=2, routing_key=rid, tenant="cold")
    warm = count()
    limit = w.turns + 8 * (policy.max_passes + 3)
    while any(rid not in w.started_at for rid in cold):
        assert w.turns < limit, f"passed {watched.passes['cold0']} times and not admitted"
        for _ in range(slots):
            rid = f"warm{next(warm)}"
            options = {"routing_key": "hot", "tenant": "hot", "priority": urgent}
            watched.submit(HOT + f"{rid:>9}", rid, max_tokens=2, **options)
        watched.turn()
    w.run(20_000)
    w.check()
    worst = max(watched.passes[rid] for rid in cold)
    assert worst <= policy.max_passes
    if name in ("hot-first", "latest-first"):
        assert worst >= policy.max_passes, "the stream was not hostile"
    w.clean()


@pytest.mark.parametrize("slots", [2, 6])
@pytest.mark.parametrize("name", ["urgent", *(name for name in offered() if name == "fair")])
@pytest.mark.parametrize("host", [0, 200])
def test_less_urgent_work_ends_under_a_steady_urgent_stream(world, name, slots, host):
    """It gives way `max_retractions` times at most, and is passed as often as declared, all its waits together."""
    policy = made(name)
    sim = SimConfig(token_bytes=8, eos_every=0, chunk=32)
    w = world(sim, device=40, host=host, max_running=slots, policy=policy, max_retractions=2, audit=False)
    watched = Watched(w)
    low = [f"low{number}" for number in range(2)]
    for number, rid in enumerate(low):
        watched.submit(f"{number}low" * 8, rid, max_tokens=30, tenant="low")
    jobs = {}
    for _ in range(4):
        watched.turn()
    jobs = {rid: w.brain._jobs[rid] for rid in low}
    stream = count()
    limit = w.turns + 12 * (policy.max_passes + slots) + 3 * 40
    while any(rid not in w.finished_at for rid in low):
        assert w.turns < limit, {rid: (watched.passes[rid], job.retractions) for rid, job in jobs.items()}
        rid = f"urgent{next(stream)}"
        watched.submit(f"{rid:>9}" + "u" * 40, rid, max_tokens=4, priority=20, tenant="high")
        watched.turn()
    assert w.brain.counters.causes["preempted"] > 0
    for rid, job in jobs.items():
        assert job.retractions <= 2
        assert watched.passes[rid] <= policy.max_passes
    w.run(20_000)
    w.check()
    w.clean()
