"""Everything that can run ends within a bounded number of steps, whatever the sizes, the policy and the failures."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.abc.schedule import SchedulePolicy
from stepwell.abc.write import Decision, Edge, WritePolicy
from stepwell.builtin.fcfs import Fcfs
from stepwell.builtin.sim import SimConfig
from stepwell.offers import NoConfig
from stepwell.schedule.request import Request
from stepwell.types import Chunked, Full, GroupSpec, Need, Window


class LongestPrefix(SchedulePolicy):
    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: -view.cached(request))


class Shuffled(SchedulePolicy):
    """An order without any sense, but the same one each time it is asked."""

    max_passes = 3

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: random.Random(f"{request.rid}{view.version}").random())

    def victim(self, running, view):
        return min(running, key=lambda request: random.Random(request.rid).random())


class Unwilling(SchedulePolicy):
    """Lets nobody in beside others, and looks past nobody."""

    def order(self, waiting, view):
        return reversed(waiting)

    def admit(self, request, view):
        return False

    def look_past(self, request, misfits, view):
        return False

    def chunks(self, prompts, budget, view):
        return [0] * len(prompts)


class Pushy(SchedulePolicy):
    """Everybody who waits would have everybody who runs give way, the oldest first."""

    def order(self, waiting, view):
        return reversed(waiting)

    def look_past(self, request, misfits, view):
        return True

    def preempt(self, request, running, view):
        return sorted(running, key=lambda other: other.order)

    def victim(self, running, view):
        return min(running, key=lambda request: request.order)


class Urgent(SchedulePolicy):
    """The less urgent give way to the more urgent."""

    def order(self, waiting, view):
        return sorted(waiting, key=lambda request: -request.priority)

    def preempt(self, request, running, view):
        less = [other for other in running if other.priority < request.priority]
        return sorted(less, key=lambda other: (other.priority, -other.order))


class Garbage(SchedulePolicy):
    """Answers at random what nobody can use; `max_passes` is no number either."""

    max_passes = None

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def _answer(self, right, *others):
        kind = self._draw.randrange(len(others) + 3)
        if kind < len(others):
            return others[kind]
        if kind == len(others):
            raise RuntimeError("no answer today")
        return right

    def order(self, waiting, view):
        return self._answer(waiting, None, [], [*waiting, *waiting], ["nobody"] * len(waiting), waiting[1:])

    def admit(self, request, view):
        return self._answer(True, None, "perhaps", 0, False)

    def look_past(self, request, misfits, view):
        return self._answer(True, None, "no", 7)

    def preempt(self, request, running, view):
        return self._answer((), None, [request], [*running, *running], ["nobody"], running)

    def victim(self, running, view):
        return self._answer(running[0], None, "nobody", object())

    def chunks(self, prompts, budget, view):
        return self._answer([budget], None, [-1] * len(prompts), [10**9] * len(prompts), ["a"], [0.5] * len(prompts))


POLICIES = (
    lambda seed: Fcfs(NoConfig(), None),
    lambda seed: LongestPrefix(),
    lambda seed: Shuffled(),
    lambda seed: Unwilling(),
    lambda seed: Pushy(),
    lambda seed: Urgent(),
    Garbage,
)


class Mixed(WritePolicy):
    """Some pages go down at once, some when they are evicted, some never; some are kept clean ahead."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.reserve = 0.25 if kind == 2 else 0.0

    def decide(self, edge, cause, uses):
        if edge is Edge.STORE or self.kind == 0:
            return Decision.NOW
        if self.kind == 1:
            return Decision.NEVER
        return Decision.NOW if uses > 1 or cause.value == "evict" else Decision.LATER


@dataclass(frozen=True, slots=True)
class Grouped(SimConfig):
    """A sim of any attention groups."""

    needs: tuple[Need, ...] = (Full(),)
    """Only with `verify` off may one end within a page that it does not need: verified pages continue one another."""

    def groups_of(self, world: int) -> tuple[GroupSpec, ...]:
        return tuple(GroupSpec(f"g{at}", need, self.token_bytes, (at,)) for at, need in enumerate(self.needs))


@dataclass
class Scene:
    """A world, what comes when, and what is wrong with the rest."""

    world: object
    work: list[tuple[int, Request]]
    aborts: list[tuple[int, str]]
    misfits: set[str] = field(default_factory=set)


def scene(World, seed):
    """Everything drawn from one seed."""
    draw = random.Random(seed)
    page = draw.choice((1, 2, 4, 16))
    windows = draw.choice(
        ((), (), (Window(6),), (Window(20), Window(5)), (Chunked(8),), (Window(9), Chunked(4 * page)), (Window(0),))
    )
    full = draw.random() < 0.7 or not windows
    longest = draw.choice((24, 60, 90))
    sim = Grouped(
        needs=(Full(),) * full + windows,
        verify=not any(isinstance(need, Chunked) or need == Window(0) for need in windows),
        token_bytes=8,
        eos_every=draw.choice((0, 0, 13)),
        chunk=draw.choice((1, page, 16, 40, 1000)),
        depth=draw.choice((1, 2, 3)),
        max_steps=draw.choice((1, 1, 1, 8)),
        fail_steps=tuple(draw.sample(range(1, 60), draw.choice((0, 0, 0, 3)))),
        fail_loads=tuple(draw.sample(range(1, 9), draw.choice((0, 0, 3)))),
        fail_saves=tuple(draw.sample(range(1, 9), draw.choice((0, 0, 3)))),
    )
    over = draw.choice((100, 100, 110, 130, 200, 400))
    device = -(-longest * over // 100 // page) + draw.choice((0, 0, 2))
    host = draw.choice((0, 1, device // 2, 4 * device))
    world = World(
        sim,
        device=device,
        host=host,
        page=page,
        policy=draw.choice(POLICIES)(seed),
        write=Mixed(draw.randrange(3)),
        storage={} if host and draw.random() < 0.5 else None,
        flaky=draw.choice((0.0, 0.0, 0.3)),
        lag=draw.randrange(sim.depth),
        step_retries=99,
        max_running=draw.choice((1, 2, 5, 16)),
        max_prefill_tokens=draw.choice((1, page, 13, 64, 1000)),
        save_pages_per_step=draw.choice((1, 4, 1000)),
        look_at=draw.choice((1, 2, 512)),
        max_retractions=draw.choice((0, 1, 3)),
        reserve=draw.choice((0.0, 0.4)),
        **draw.choice(({}, {}, {"prefill_every": 3}, {"decode_every": 3})),
    )
    stems = ["".join(draw.choices("abc", k=draw.choice((3, 9, 20)))) for _ in range(3)]
    work, misfits = [], set()
    for number in range(draw.randrange(2, 12)):
        prompt = (draw.choice(stems) + "".join(draw.choices("xyz", k=draw.randrange(1, 12))))[: longest - 2]
        new = draw.randrange(1, longest - len(prompt) + 1)
        if draw.random() < 0.1:
            new = world.cache.largest() + 1 if full else sim.context
        request = world.request(
            prompt, f"r{number}", max_tokens=new, priority=draw.choice((0, 0, 1, 5)), store=draw.random() < 0.9
        )
        if not world.cache.fits(len(prompt) + new) or len(prompt) + new > sim.context:
            misfits.add(request.rid)
        work.append((draw.randrange(draw.choice((2, 40))), request))
    aborts = [(draw.randrange(80), f"r{draw.randrange(14)}") for _ in range(draw.choice((0, 0, 1, 4)))]
    return Scene(world, sorted(work, key=lambda entry: entry[0]), sorted(aborts), misfits)


def bound(world, work):
    """Most steps, and most times that somebody goes back to the queue.

    A step brings at least one request on, by a page of its prompt or by a token, or it copies a page. Who goes back
    does its prompt and what it had answered again at worst. It goes back at most `max_retractions` times as long as
    others may have to; when nobody else may, the latest does, each time for a page more of an older one.
    """
    page = world.page
    pages = {r.rid: -(-(len(r.tokens) // 4 + r.sampling.max_tokens) // page) for _, r in work}
    back = len(work) * world.settings.max_retractions + sum(pages.values())
    back += len(world.sim.fail_steps) * world.settings.max_running + len(world.sim.fail_loads)
    steps = sum(pages[r.rid] + r.sampling.max_tokens for _, r in work) + len(world.sim.fail_steps)
    steps += world.cache.stats.saved + world.cache.stats.save_failed
    return steps, back, max(pages.values(), default=0) + world.settings.depth


def play(found):
    """To the end, audited in every turn."""
    w, work, aborts = found.world, list(found.work), list(found.aborts)
    while work or aborts:
        while work and work[0][0] <= w.turns:
            w.submit(work.pop(0)[1])
        while aborts and aborts[0][0] <= w.turns:
            w.abort(aborts.pop(0)[1])
        w.turn()
        for rid in found.misfits & set(w.requests):
            assert w.last(rid).finish == "refused", "what never fits is refused at once"
    w.run(20_000)


def truth(w, rid):
    """What a request is answered by itself; without verified pages only how long it is."""
    if w.sim.verify:
        return w.truth(rid)
    return w.said(rid)[:1] * w.requests[rid].sampling.max_tokens


def verify(found):
    w = found.world
    gone = {rid for _, rid in found.aborts}
    for rid in w.requests:
        last = w.last(rid)
        if rid in found.misfits:
            asked = len(w.requests[rid].tokens) // 4 + w.requests[rid].sampling.max_tokens
            limit = w.sim.context if asked > w.sim.context else w.cache.largest()
            assert last.finish == "refused" and str(limit) in str(last.error), last
        elif rid not in gone or last.finish != "abort":
            assert last.finish in ("stop", "length"), last
            assert w.said(rid) == truth(w, rid), rid
        else:
            assert w.said(rid) == truth(w, rid)[: len(w.said(rid))], rid
    counters = w.brain.counters
    admissible = [entry for entry in found.work if entry[1].rid not in found.misfits]
    steps, back, again = bound(w, admissible)
    went = sum(counters.causes.values())
    assert went <= back, f"{went} ways back to the queue, at most {back}"
    assert counters.steps <= steps + went * again, f"{counters.steps} steps, at most {steps} + {went} * {again}"
    assert w.brain.idle and w.brain.waiting == w.brain.running == 0
    w.clean()


@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_everything_that_can_run_ends(world, seed):
    found = scene(world, seed)
    play(found)
    verify(found)
