"""A little cache around a policy, to see what a workload makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from stepwell import EvictionPolicy, Segment, take_pages


class LittleCache:
    """Segments by name, one page each, `room` of them; what is evicted is forgotten."""

    def __init__(self, policy: EvictionPolicy, room: int = 8) -> None:
        self.policy = policy
        self.room = room
        self.held: dict[object, Segment] = {}
        self.names: dict[Segment, object] = {}
        self.clock = 0

    def use(self, name: object, priority: int = 0) -> bool:
        """A request for one segment: whether it was a hit."""
        self.clock += 1
        segment = self.held.get(name)
        if segment is not None:
            segment.hits += 1
            segment.last_used = self.clock
            segment.priority = max(segment.priority, priority)
            self.policy.on_hit(segment)
            return True
        while len(self.held) >= self.room:
            self.evict()
        segment = Segment(1, self.clock, priority)
        self.held[name] = segment
        self.names[segment] = name
        self.policy.on_insert(segment)
        return False

    def all(self, *names: object) -> int:
        """Use them one after another; how many were hits."""
        return sum(self.use(name) for name in names)

    def evict(self) -> object:
        """Evict what the policy proposes first; its name."""
        (victim,) = take_pages(self.policy.victims(1), 1)
        return self.drop(self.names[victim])

    def drop(self, name: object) -> object:
        """A segment leaves."""
        segment = self.held.pop(name)
        self.policy.on_remove(segment)
        return name

    @property
    def order(self) -> list[object]:
        """All names in the order in which they would leave."""
        return [self.names[segment] for segment in self.policy.victims(self.room)]


class Recent(EvictionPolicy):
    """Plain LRU, to compare with."""

    def __init__(self) -> None:
        self.queue: dict[Segment, None] = {}

    def on_insert(self, segment: Segment) -> None:
        self.queue.pop(segment, None)
        self.queue[segment] = None

    def on_hit(self, segment: Segment) -> None:
        self.on_insert(segment)

    def on_remove(self, segment: Segment) -> None:
        self.queue.pop(segment, None)

    def victims(self, pages: int) -> Iterable[Segment]:
        return iter(self.queue)


@pytest.fixture
def little() -> Callable[..., LittleCache]:
    return LittleCache


@pytest.fixture
def lru() -> EvictionPolicy:
    return Recent()
