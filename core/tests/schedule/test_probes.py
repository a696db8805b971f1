"""What is remembered of waiting requests is what the cache would say, whatever happened to the tree."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stepwell.abc.ranked import RankedPolicy
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.node import DEVICE
from stepwell.cache.recency import Recency
from stepwell.schedule.job import Job
from stepwell.schedule.line import Line
from stepwell.schedule.probes import leave
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request
from stepwell.schedule.view import View
from stepwell.types import Chunked, Full, GroupSpec, Window

PAGE = 2
NAMESPACES = (bytes(32), b"\1" * 32)
FULL = GroupSpec("full", Full(), 1, (0,))
NEAR = GroupSpec("near", Window(3), 1, (1,))
FAR = GroupSpec("far", Window(9), 1, (2,))
CHUNK = GroupSpec("chunk", Chunked(8), 1, (1,))
SHAPES = {
    "full": (FULL,),
    "windows": (FULL, NEAR, FAR),
    "windows alone": (NEAR,),
    "chunks": (FULL, CHUNK),
    "two full": (FULL, GroupSpec("also", Full(), 1, (1,))),
}


class Longest(RankedPolicy):
    probes = True

    def place(self, request, view):
        return view.prefix(request), (-view.cached(request), request.length)


class Down(WritePolicy):
    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NOW


class Ends(RetentionPolicy):
    def keep(self, length, page, branches):
        return (length, length // 2)


def words(*ids):
    return np.array(ids, dtype=np.int32).tobytes()


class World:
    """A small cache under pressure, and requests that wait while others are served."""

    def __init__(self, groups, host, seed, line=None):
        self.dice = random.Random(seed)
        self.cache = Cache(
            CacheShape(groups, PAGE, (40,) * len(groups), (24 * host,) * len(groups)),
            evict=lambda tier, group: Recency(),
            write=Down(),
            retain=Ends(),
        )
        self.view = View(self.cache, lambda: ())
        self.line = Line() if line is None else line
        self.known = {}
        self.leases = []
        self.orders = 0
        self.now = 0.0
        self.step = 0

    def prompt(self):
        """Much is shared: few words, and a prompt often goes on from where another did."""
        start = [self.dice.randrange(3) for _ in range(self.dice.randrange(1, 4))]
        body = [start[0] * 3 + at // 4 % 3 for at in range(self.dice.choice([0, 3, 8, 17, 30]))]
        cut = self.dice.randrange(len(body) + 1)
        return words(*body[:cut], *start, *body[cut:])

    def join(self):
        request = Request(rid=f"r{self.orders}", namespace=self.dice.choice(NAMESPACES), tokens=self.prompt())
        self.line.add(Job(request, self.orders, 0.0))
        self.orders += 1

    def leave(self):
        if len(self.line):
            job = self.dice.choice(list(self.line))
            self.line.remove(job)
            leave(job)
            self.known.pop(job, None)

    def start(self):
        tokens, namespace = self.prompt(), self.dice.choice(NAMESPACES)
        if len(tokens) < 8:
            return
        lease = self.cache.admit(namespace, tokens, lambda found: len(tokens) // 4)
        if lease is not None:
            for copy in lease.loads:
                self.cache.loaded(lease, copy, [self.dice.random() < 0.8 for _ in copy.device])
            self.leases.append((lease, tokens))

    def go_on(self):
        if not self.leases:
            return
        lease, tokens = self.leases.pop(self.dice.randrange(len(self.leases)))
        done = self.dice.randrange(len(tokens) // 4 + 1)
        for upto in sorted({done, len(tokens) // 4}):
            final = upto == len(tokens) // 4
            expires = self.now + 3 if self.dice.random() < 0.3 else None
            self.cache.publish(lease, tokens[: 4 * upto], final=final, expires=expires if final else None)
            self.cache.trim(lease, upto)
        if self.dice.random() < 0.8:
            self.cache.close(lease)
        else:
            self.leases.append((lease, tokens))

    def save(self):
        for copy in self.cache.saves(self.dice.randrange(1, 20)):
            self.cache.saved(copy, [self.dice.random() < 0.8 for _ in copy.device])

    def launch(self):
        self.step += 1
        self.cache.step_launched(self.step)
        self.cache.step_completed(self.step)

    def expire(self):
        self.now += 2
        self.cache.expire(self.now)

    def flush(self):
        if self.dice.random() < 0.2:
            self.cache.flush()

    def turn(self):
        moves = [self.join, self.join, self.leave, self.start, self.start, self.go_on, self.go_on, self.save]
        self.dice.choice([*moves, self.launch, self.expire, self.flush])()

    def check(self):
        """Answers hold, and whoever is no news has the same as before."""
        news = set(self.view.news())
        for job in self.line:
            was = self.known.get(job)
            assert job in news or was is None or job.spot is not None
            cached, prefix = self.view.cached(job), self.view.prefix(job)
            assert cached == self.cache.probe(job.request.namespace, job.tokens)
            assert (prefix is None) == (cached == 0)
            if was is not None and job not in news:
                assert (cached, prefix) == was, "somebody was not marked"
            self.known[job] = cached, prefix


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_hold_and_whoever_is_not_marked_has_the_same_as_before(shape, host):
    for seed in range(12):
        world = World(SHAPES[shape], host, seed)
        world.view.news()
        for _ in range(120):
            world.turn()
            world.check()


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_hold_where_they_are_asked_for_now_and_then(shape):
    for seed in range(8):
        world = World(SHAPES[shape], 1, seed)
        world.view.news()
        for _ in range(40):
            for _ in range(world.dice.randrange(9)):
                world.turn()
            world.check()


def test_nothing_is_kept_of_those_who_wait_no_more():
    world = World(SHAPES["windows"], 1, 5)
    for _ in range(200):
        world.turn()
        world.check()
    while len(world.line):
        world.leave()
    assert not world.view._probes._spots


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kept_order_is_the_one_from_scratch_whatever_happens_to_the_tree(shape):
    faults = []
    for seed in range(6):
        world = World(SHAPES[shape], 1, seed, Queue(Longest(), faults.append))
        for _ in range(60):
            for _ in range(world.dice.randrange(6)):
                world.turn()
            assert list(world.line.ordered(world.view)) == list(Longest().order(tuple(world.line), world.view))
    assert not faults


class Path:
    """One served prompt of twelve pages, whose first node was split where others left; its window is all there."""

    def __init__(self, *splits):
        self.world = World((FULL, FAR), 0, 0)
        self.tokens = words(*range(24))
        lease = self.world.cache.admit(NAMESPACES[0], self.tokens, lambda found: 24)
        self.world.cache.publish(lease, self.tokens)
        self.world.cache.close(lease)
        self.index = self.world.cache._index
        self.node = next(iter(self.index.roots[NAMESPACES[0]].children.values()))
        self.uppers = [self.index.split(self.node, at - self.node.first) for at in splits]

    def wait(self, tokens):
        job = Job(Request(rid=f"r{len(self.world.line)}", namespace=NAMESPACES[0], tokens=tokens), 0, 0.0)
        self.world.line.add(job)
        return job, self.world.view.cached(job)

    def lose(self, node, page):
        self.index.cut(DEVICE, node, 1, np.array([page]))


def test_a_window_that_loses_a_page_three_nodes_above_is_noticed():
    path = Path(2, 3, 4)
    job, cached = path.wait(path.tokens[: 4 * 13])
    assert cached == 12
    path.lose(path.uppers[0], 1)
    assert path.world.view.cached(job) == path.world.cache.probe(NAMESPACES[0], job.tokens) < 12


def test_a_window_that_loses_a_page_of_a_node_which_is_then_split_is_noticed():
    path = Path()
    job, cached = path.wait(path.tokens[: 4 * 9])
    assert cached == 8
    path.lose(path.node, 2)
    path.index.split(path.node, 5)
    assert path.world.view.cached(job) == path.world.cache.probe(NAMESPACES[0], job.tokens) < 8
