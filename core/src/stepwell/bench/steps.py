"""What our Python costs in a step, with a full batch and a queue before it, while requests end and others come."""

from __future__ import annotations

import time
from collections import deque
from random import Random
from statistics import mean, median
from typing import Any

import numpy as np

from stepwell.abc.runner import Step
from stepwell.abc.schedule import SchedulePolicy
from stepwell.bench.waiters import NAMESPACE, KeepNothing, Never
from stepwell.builtin.sim import SimConfig, SimRunner
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.recency import Recency
from stepwell.engine.actions import Event, Launch
from stepwell.engine.brain import Brain, BrainSettings
from stepwell.schedule.request import Request
from stepwell.types import Sampling

PAGE = 16
SHARED, OWN = 256, 256
"""Tokens of a prompt that others begin with, too, and of those that are its own."""
PREFIXES = 64
ANSWERS = (64, 192)
"""Tokens of an answer: any number between is as likely."""


class Loop:
    """A brain on a runner that computes nothing."""

    def __init__(self, policy: SchedulePolicy, running: int, waiting: int) -> None:
        sim = SimConfig(verify=False, eos_every=0, context=100_000, token_bytes=8)
        pages = 2 * running * (SHARED + OWN + ANSWERS[1]) // PAGE
        cache = Cache(
            CacheShape(sim.groups, PAGE, (pages,), (0,)),
            evict=lambda tier, group: Recency(),
            write=Never(),
            retain=KeepNothing(),
        )
        self._runner = SimRunner(sim)
        self._runner.open(PAGE, {sim.groups[0].name: pages}, running, lambda: None)
        settings = BrainSettings(chunk=sim.chunk, depth=sim.depth, max_running=running)
        self.brain = Brain(model=self._runner.model, cache=cache, policy=policy, prefetch=None, settings=settings)
        self._waiting = waiting
        self._dice = Random(2)
        self._requests = 0
        self._steps: deque[Step] = deque()
        self._events: list[Event] = []

    def tick(self) -> float:
        """One step goes, another ends, and the queue is filled up; answers the seconds that the brain took."""
        for _ in range(self._waiting - self.brain.waiting):
            self._events.append(self._request())
        events, self._events = self._events, []
        begin = time.thread_time()
        actions = self.brain.tick(float(self._requests), events)
        took = time.thread_time() - begin
        launched = [self._runner.launch(action.plan) for action in actions if isinstance(action, Launch)]
        self._steps += launched
        if self._steps and (len(self._steps) > 1 or not launched):
            result = self._steps.popleft().poll()
            assert result is not None
            self._events.append(result)
        return took

    def _request(self) -> Request:
        self._requests += 1
        shared = np.full(SHARED, self._dice.randrange(PREFIXES), dtype=np.int32).tobytes()
        own = np.full(OWN, PREFIXES + self._requests, dtype=np.int32).tobytes()
        sampling = Sampling(max_tokens=self._dice.randint(*ANSWERS))
        return Request(rid=f"r{self._requests}", namespace=NAMESPACE, tokens=shared + own, sampling=sampling)


def steps(policy: SchedulePolicy, ticks: int, running: int = 256, waiting: int = 1000) -> dict[str, Any]:
    """Microseconds of processor time a step, once the batch has been full for as long as an answer takes."""
    loop = Loop(policy, running, waiting)
    while loop.brain.running < running:
        loop.tick()
    for _ in range(ANSWERS[1]):
        loop.tick()
    before = loop.brain.stats()
    took = [loop.tick() for _ in range(ticks)]
    after = loop.brain.stats()
    if after["policy_faults"]:
        raise RuntimeError("the policy is at fault")
    return {
        "step_us": 1e6 * mean(took),
        "step_p50_us": 1e6 * median(took),
        "step_load": f"{running} running, {waiting} waiting, "
        f"{(after['admissions'] - before['admissions']) / (after['steps'] - before['steps']):.1f} admitted a step",
    }
