"""What ranks that are threads send each other: for doubles of libraries that need devices and processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Wire:
    """Mailboxes of all ranks."""

    ranks: int
    patience_s: float = 20.0
    """How long `take` waits for what does not come."""
    _news: threading.Condition = field(default_factory=threading.Condition, init=False)
    _boxes: dict[tuple[int, Hashable, int], Any] = field(default_factory=dict, init=False)

    def put(self, to: int, key: Hashable, source: int, thing: Any) -> None:
        """Lay something down for a rank; it must have taken what was there."""
        with self._news:
            assert (to, key, source) not in self._boxes, f"rank {source} writes over what rank {to} has not read: {key}"
            self._boxes[to, key, source] = thing
            self._news.notify_all()

    def take(self, at: int, key: Hashable) -> tuple[list[Any], list[int]]:
        """What every rank laid down for this one, None where it did not in time; and which ranks did not."""
        slots = [(at, key, source) for source in range(self.ranks)]
        end = time.monotonic() + self.patience_s
        with self._news:
            while not all(slot in self._boxes for slot in slots) and time.monotonic() < end:
                self._news.wait(0.05)
            missing = [slot[2] for slot in slots if slot not in self._boxes]
            return [self._boxes.pop(slot, None) for slot in slots], missing

    def wipe(self, at: int, key: Hashable) -> None:
        """Forget what was laid down for a rank, read or not."""
        with self._news:
            for slot in [slot for slot in self._boxes if slot[:2] == (at, key)]:
                del self._boxes[slot]

    def everybody(self, rank: int, key: Hashable, thing: Any) -> list[Any]:
        """What each rank brings, on every rank; TimeoutError where one does not come."""
        for to in range(self.ranks):
            self.put(to, key, rank, thing)
        things, missing = self.take(rank, key)
        if missing:
            raise TimeoutError(f"rank {rank} waits for {missing}: {key}")
        return things


class TwoBuffers:
    """The flags of low-latency libraries: two sets in turn, and each send wipes those that come next."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire, self._rank, self._at = wire, rank, 0

    def send(self, parts: list[Any]) -> Callable[[], tuple[list[Any], list[int]]]:
        """Send each rank its part; what is answered receives theirs, and which ranks were silent."""
        mine = ("flags", self._at)
        self._at ^= 1
        self._wire.wipe(self._rank, ("flags", self._at))
        for to, part in enumerate(parts):
            self._wire.put(to, mine, self._rank, part)
        return lambda: self._wire.take(self._rank, mine)


@dataclass
class Seat:
    """A rank's place in a group, as much of it as dispatchers over libraries ask for."""

    rank: int
    size: int
    store: Any
    device: Any
    closed: bool = False

    def named(self, name: str, store: Any) -> Named:
        """The group as libraries take one."""
        return Named(self.rank, self.size, name)

    def close(self) -> None:
        """Noted."""
        self.closed = True


@dataclass(frozen=True)
class Named:
    """What a double needs of a process group."""

    at: int
    count: int
    name: str

    def rank(self) -> int:
        """As process groups say it."""
        return self.at

    def size(self) -> int:
        """As process groups say it."""
        return self.count
