"""Simulated storage at work: what the brain asks of it, and when each answer comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell.cache.cache import FetchOp, StoreOp
from stepwell.engine.actions import (
    Event,
    Fetch,
    FetchEnded,
    FetchMoved,
    Queried,
    Query,
    StopFetch,
    Store,
    StoreEnded,
)
from stepwell.replay.links import Link, SimStore
from stepwell.types import DONE, MISSING, PageKey, PageResult

READ_BATCH = 64
"""Pages a simulated read brings at once, as the live storage threads do."""


@dataclass(slots=True)
class SimStorage:
    """A storage and the links to it."""

    held: SimStore
    read: Link
    write: Link


@dataclass(slots=True)
class _Flight:
    """A simulated fetch: batch by batch, so that fetches share the link and one that is stopped leaves it at once."""

    op: FetchOp
    batches: list[tuple[int, tuple[PageKey, ...]]]
    """Read of the op and keys, of each batch that has not begun."""
    found: list[list[PageResult]]


@dataclass(slots=True)
class Transfers:
    """All under way. `push(at, event)` lets an event come; `count(direction, group, pages)` hears what moves."""

    storage: SimStorage | None
    page_bytes: tuple[int, ...]
    now: Callable[[], float]
    push: Callable[[float, Callable[[], Event]], None]
    count: Callable[[str, int, int], None]
    flights: dict[int, _Flight] = field(default_factory=dict)

    def take(self, action: Query | Fetch | StopFetch | Store) -> None:
        """Begin, or stop, what the brain asks for."""
        storage = self.storage
        assert storage is not None
        match action:
            case Query(rid, plan):
                present = [storage.held.contains(keys) for keys in plan.keys]
                self.push(self.now() + storage.read.latency_s, partial(Queried, rid, present))
            case Fetch(op):
                self._fetch(storage, op)
            case StopFetch(id):
                if id in self.flights:
                    self.flights[id].batches.clear()
            case Store(op):
                self._store(storage, op)

    def _fetch(self, storage: SimStorage, op: FetchOp) -> None:
        batches = [
            (read, keys[at : at + READ_BATCH])
            for read, (_, keys, _) in enumerate(op.reads)
            for at in range(0, len(keys), READ_BATCH)
        ]
        flight = self.flights[op.id] = _Flight(op, batches, [[] for _ in op.reads])
        self._read_on(storage, flight)

    def _read_on(self, storage: SimStorage, flight: _Flight) -> None:
        """Begin the next batch; what storage holds then is what comes."""
        read, keys = flight.batches.pop(0)
        group = flight.op.reads[read][0]
        results = [DONE if held else MISSING for held in storage.held.contains(keys)]
        self.count("fetch", group, results.count(DONE))
        nbytes = results.count(DONE) * self.page_bytes[group]
        self.push(storage.read.send(self.now(), nbytes), partial(self._landed, storage, flight, read, results))

    def _landed(self, storage: SimStorage, flight: _Flight, read: int, results: Sequence[PageResult]) -> Event:
        """A batch has arrived: what it says, with the next one on its way."""
        flight.found[read] += results
        if flight.batches:
            self._read_on(storage, flight)
            return FetchMoved(flight.op.id, sum(one.count(DONE) for one in flight.found))
        del self.flights[flight.op.id]
        return FetchEnded(flight.op.id, flight.found)

    def _store(self, storage: SimStorage, op: StoreOp) -> None:
        self.count("store", op.group, len(op.keys))
        nbytes = len(op.keys) * self.page_bytes[op.group]
        self.push(storage.write.send(self.now(), nbytes), partial(self._stored, storage, op))

    def _stored(self, storage: SimStorage, op: StoreOp) -> Event:
        storage.held.add(op.keys, self.page_bytes[op.group])
        return StoreEnded(op.id, [DONE] * len(op.keys))
