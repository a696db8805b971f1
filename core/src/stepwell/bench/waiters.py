"""What an order over many waiting requests costs: from scratch, and after little has changed.

The tree holds the prompts of requests that were served; others wait, most of which begin like one of those. Each figure
is measured beside the same order worked out from a full match of every request, in processor time, so that a round does
not count what others ran meanwhile.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from random import Random

from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.schedule import SchedulePolicy, ScheduleView, WaitingView
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.cache.audit import nodes
from stepwell.cache.cache import Cache, CacheShape
from stepwell.cache.follow import Follower
from stepwell.cache.match import last_of
from stepwell.cache.node import DEVICE, Node
from stepwell.cache.recency import Recency
from stepwell.schedule.job import Job
from stepwell.schedule.probes import Shared, share
from stepwell.schedule.queue import Queue
from stepwell.schedule.request import Request
from stepwell.schedule.view import View
from stepwell.types import TOKEN_BYTES, Full, GroupSpec

NAMESPACE = bytes(32)
LOOK_AT = 512
"""An admission pass looks at so many."""
SHARE = 100
"""One in so many requests, or pages, is another one in a round."""
STRANGE = (1 << 31) - 1
"""A token that no prompt of a trace has, nor those before it."""

Make = Callable[[], SchedulePolicy]


@dataclass(slots=True)
class Times:
    """Milliseconds, a figure a round."""

    scratch: list[float] = field(default_factory=list)
    unchanged: list[float] = field(default_factory=list)
    one_percent: list[float] = field(default_factory=list)
    publish: list[float] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    """Spent while the tree changed, to mark whom that concerns; `publish` has it, too."""
    full_match: list[float] = field(default_factory=list)
    affected: list[int] = field(default_factory=list)
    """Requests that had to be asked about anew after the tree had changed."""


class Waiters:
    """A cache that has served some prompts, and others that wait."""

    def __init__(self, served: Sequence[bytes], waiting: Sequence[bytes], page: int, least: int = 0) -> None:
        """`least`: nodes that the tree has at least; prompts that leave a served one anywhere are made up for them."""
        self._waiting = waiting
        self._page = page
        self._step = page * TOKEN_BYTES
        self._dice = Random(1)
        self._strange = STRANGE
        self._orders = count()
        room = sum(len(prompt) // self._step + 1 for prompt in served) + 2 * least
        room += max(len(prompt) // self._step + 1 for prompt in waiting)
        self.cache = Cache(
            CacheShape((GroupSpec("full", Full(), 1, (0,)),), page, (room,), (0,)),
            evict=lambda tier, group: Recency(),
            write=Never(),
            retain=KeepNothing(),
        )
        for prompt in served:
            self._serve(prompt)
        while (missing := least - len(self._nodes())) > 0:
            for _ in range(missing // 2 + 1):
                self._serve(self._branch(self._dice.choice(served)))
        self.nodes = len(self._nodes())
        self.pages = sum(node.pages for node in self._nodes())
        cached = sum(self.cache.probe(NAMESPACE, prompt) for prompt in waiting)
        self.share = cached * TOKEN_BYTES / sum(map(len, waiting))

    # region: rounds

    def measure(self, make: Make, rounds: int) -> Times:
        """Time rounds of all changes; each order is checked against one from nothing first."""
        times, faults = Times(), list[str]()
        for _ in range(rounds):
            queue, view = Queue(make(), faults.append), View(self.cache, lambda: ())
            for prompt in self._waiting:
                queue.add(self._job(prompt))
            read = partial(_read, queue, view)
            times.scratch.append(_timed(read))
            self._check(queue, view, make)
            times.unchanged.append(_timed(read))
            times.full_match.append(_timed(partial(self._read_from_nothing, queue, make)))
            times.one_percent.append(self._swap(queue, view))
            self._check(queue, view, make)
            marking = self._churn()
            times.affected.append(sum(job.spot is None for job in queue))
            times.marks.append(marking)
            times.publish.append(marking + _timed(read))
            self._check(queue, view, make)
            for job in tuple(queue):
                queue.remove(job)
        if faults:
            raise RuntimeError(f"the policy is at fault: {faults[0]}")
        return times

    def _swap(self, queue: Queue, view: View) -> float:
        """One request in a hundred goes, the first of the order, and another comes; answers what all of it took."""
        few = max(1, len(queue) // SHARE)
        gone = list(islice(queue.ordered(view), few))
        come = [self._job(self._dice.choice(self._waiting)) for _ in range(few)]

        def swap() -> None:
            for job in gone:
                queue.remove(job)
            for job in come:
                queue.add(job)
            _read(queue, view)

        return _timed(swap)

    def _churn(self) -> float:
        """One page in a hundred is evicted, least recently used first, and as many come with prompts of those who wait.

        Answers what it took to mark whom that concerns.
        """
        few = max(1, self.pages // SHARE)
        timed = _Clocked(self.cache._index.follower)
        self.cache.follow(timed)
        self.cache._evictor.evict(DEVICE, 0, few)
        self._publish(few)
        self.cache.follow(timed.follower)
        return max(0, timed.ns) / 1e6

    def _publish(self, pages: int) -> None:
        """Serve prompts of those who wait until so many pages are new."""
        pool = self.cache._pools[DEVICE][0]
        for _ in range(len(self._waiting)):
            before = pool.tree_only
            self._serve(self._dice.choice(self._waiting)[: pages * self._step])
            pages -= max(0, pool.tree_only - before)
            if pages <= 0:
                return

    def _check(self, queue: Queue, view: View, make: Make) -> None:
        if list(queue.ordered(view)) != list(self._from_nothing(queue, make)):
            raise RuntimeError("the order is another than from nothing")

    def _read_from_nothing(self, queue: Queue, make: Make) -> None:
        _first(self._from_nothing(queue, make))

    def _from_nothing(self, queue: Queue, make: Make) -> Iterable[WaitingView]:
        return make().order(tuple(queue), _Forgetful(self.cache))

    # endregion

    # region: prompts

    def _job(self, prompt: bytes) -> Job:
        order = next(self._orders)
        return Job(Request(rid=f"r{order}", namespace=NAMESPACE, tokens=prompt), order, float(order))

    def _serve(self, prompt: bytes) -> None:
        length = len(prompt) // TOKEN_BYTES
        lease = self.cache.admit(NAMESPACE, prompt, lambda found: length)
        if lease is None:
            raise RuntimeError("the bench's pool is too small")
        self.cache.publish(lease, prompt, final=True)
        self.cache.close(lease)

    def _branch(self, prompt: bytes) -> bytes:
        """The prompt up to a page, and a page that no other has."""
        self._strange -= 1
        cut = self._dice.randrange(len(prompt) // self._step + 1) * self._step
        return prompt[:cut] + array("i", [self._strange]).tobytes() * self._page

    def _nodes(self) -> list[Node]:
        return list(nodes(self.cache._index))

    # endregion


class Never(WritePolicy):
    """Copies nothing down."""

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NEVER


class KeepNothing(RetentionPolicy):
    """Keeps no window."""

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return ()


class _Forgetful(ScheduleView):
    """Matches each request in full whenever it is asked, with nothing remembered."""

    now = 0.0
    running = ()
    version = 0

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._shared: dict[Node, Shared] = {}

    def cached(self, request: WaitingView) -> int:
        assert isinstance(request, Job)
        return self._cache.probe(NAMESPACE, request.tokens)

    def prefix(self, request: WaitingView) -> Shared | None:
        assert isinstance(request, Job)
        found, _ = self._cache._find(NAMESPACE, request.tokens)
        return share(last_of(found.node, found.length), self._shared) if found.length else None

    def expected(self, request: WaitingView) -> float:
        return request.max_new


class _Clocked(Follower):
    """Passes on what the tree tells, and counts the processor time that this takes."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.ns = 0

    def grew(self, node: Node, edge: bytes) -> None:
        begin = time.thread_time_ns()
        self.follower.grew(node, edge)
        self._took(begin)

    def split(self, upper: Node, node: Node) -> None:
        begin = time.thread_time_ns()
        self.follower.split(upper, node)
        self._took(begin)

    def shrank(self, node: Node) -> None:
        begin = time.thread_time_ns()
        self.follower.shrank(node)
        self._took(begin)

    def gone(self, node: Node) -> None:
        begin = time.thread_time_ns()
        self.follower.gone(node)
        self._took(begin)

    def _took(self, begin: int) -> None:
        """Reading this clock takes longer than most of what it is to measure: once more, and that is taken off."""
        end = time.thread_time_ns()
        self.ns += end - begin - (time.thread_time_ns() - end)


def _read(queue: Queue, view: View) -> None:
    _first(queue.ordered(view))


def _first(order: Iterable[WaitingView]) -> None:
    deque(islice(order, LOOK_AT), maxlen=0)


def _timed(work: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    begin = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begin) / 1e6
