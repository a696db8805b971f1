"""Lanes: a NIXL agent each, which one call has to itself.

NIXL's POSIX backend keeps one queue an agent and moves it on only while somebody asks; where threads share an agent,
they wait for each other's locks and may be told each other's errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from stepwell import ArenaView, PluginError
from stepwell_nixl.client import Agent, Registered, errors, make_agent
from stepwell_nixl.segment import Segment
from stepwell_nixl.transfer import Mover

MOST = 16
"""Lanes at once: more callers wait for one."""


class Lane:
    """An agent with the arena registered."""

    def __init__(self, agent: Agent, arena: ArenaView, memory: str) -> None:
        self.agent = agent
        self.errors = errors()
        self.mover = Mover(agent, memory, self.errors)
        agent.register_memory([(arena.address, arena.nbytes, 0, "")], "DRAM")


class FileLane(Lane):
    """A lane that keeps segments registered for as long as they are in the folder."""

    def __init__(self, agent: Agent, arena: ArenaView) -> None:
        super().__init__(agent, arena, "FILE")
        self._open: dict[tuple[int, bool], tuple[Segment, Registered]] = {}

    def file(self, segment: Segment, direct: bool) -> int:
        """The segment as a NIXL device. OSError where it cannot be opened."""
        fd = segment.fd(direct)
        if (segment.number, direct) not in self._open:
            try:
                registered = self.agent.register_memory([(0, segment.nbytes, fd, "")], "FILE")
            except self.errors as error:
                raise OSError(f"{segment.path.name} cannot be registered: {error}") from None
            self._open[segment.number, direct] = (segment, registered)
        return fd

    def tidy(self) -> None:
        """Let go of segments that have left."""
        for key in [key for key, (segment, _) in self._open.items() if segment.gone]:
            _, registered = self._open.pop(key)
            with suppress(*self.errors):
                self.agent.deregister_memory(registered)


L = TypeVar("L", bound=Lane)


class Lanes(Generic[L]):
    """Lends lanes, and makes them when there are not enough."""

    def __init__(self, make: Callable[[], L]) -> None:
        self._make = make
        self._idle: list[L] = []
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST)

    @contextmanager
    def one(self) -> Iterator[L]:
        """A lane for one call."""
        with self._room:
            with self._lock:
                lane = self._idle.pop() if self._idle else None
            lane = lane or self._make()
            yield lane  # one that an unforeseen exception leaves by is not lent again
            with self._lock:
                self._idle.append(lane)

    def close(self) -> list[L]:
        """Lend none of them any more; the ones there were."""
        with self._lock:
            idle, self._idle = self._idle, []
            return idle


def file_lanes(backend: str, params: dict[str, str], arena: ArenaView, setting: str) -> Lanes[FileLane]:
    """Lanes to files, of which the first is made at once: what is wrong shows here."""
    lanes = Lanes(lambda: FileLane(make_agent(backend, params, setting), arena))
    try:
        with lanes.one():
            return lanes
    except errors() as error:
        raise PluginError(f"storage.{setting}: NIXL does not take the arena ({error})") from None
