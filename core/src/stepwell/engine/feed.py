"""What front ends that route hear of the cache: all there is when they ask, then what comes and goes.

Costs nothing while nobody asks. Afterwards the serving thread notes events, and a thread of its own puts them into
messages, a few a second. Where that thread falls behind, what it missed is made good by all there is, once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.abc.sink import Event
from stepwell.cache.cache import Cache
from stepwell.engine.messages import KvEvents, kv_events
from stepwell.engine.sinks import QUEUE, SinkLane

EVERY_S = 0.05
"""Least time between two messages."""


class Feed:
    """Used on the serving thread; `deliver` is called on another."""

    def __init__(
        self, cache: Cache, deliver: Callable[[Sequence[KvEvents]], None], *, always: bool, limit: int = QUEUE
    ) -> None:
        """`always`: the cache collects events in any case, for others. `limit`: events that may wait."""
        self._cache, self._deliver, self._always, self._limit = cache, deliver, always, limit
        self._lane: SinkLane | None = None
        self._waiting: list[Event] = []
        self._number = 0
        self.renewed = 0
        """Times that events were lost on the way, and all was told anew."""

    def __bool__(self) -> bool:
        return self._lane is not None

    def follow(self, on: bool) -> None:
        """A front end wants to know, from the beginning on; or nobody does any more."""
        self.close()
        if not self._always:
            self._cache.watch(on)
        if on:
            self._begin()

    def put(self, events: Sequence[Event]) -> None:
        """What happened since the last time."""
        lane = self._lane
        if lane is None:
            return
        lane.put(events)
        if lane.dropped:
            self.renewed += 1
            self.close()
            self._begin()

    def close(self) -> None:
        """Tell nothing more; whatever waits is dropped."""
        if self._lane is not None:
            self._lane.abandon()
            self._lane = None

    def _begin(self) -> None:
        """A lane anew: what an old one still says comes before, and its numbers are void with the new one's 0."""
        numbers = iter(range(2**62))
        deliver = self._deliver
        there = self._cache.present()
        self._lane = SinkLane(
            "front ends",
            lambda events: deliver([kv_events(next(numbers), events)]),
            every_s=EVERY_S,
            limit=self._limit + len(there),
        )
        self._lane.put(there)
