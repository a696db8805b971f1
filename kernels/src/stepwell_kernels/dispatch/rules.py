"""The rules that a dispatcher of ours keeps, whatever it sends with: order, room, batches under way, lost ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from stepwell import ConfigError, PeerLost, Traffic


class Step(IntEnum):
    """What was done to a batch last."""

    SENT, ARRIVED, RETURNED, SUMMED = range(4)


@dataclass(slots=True, kw_only=True)
class Batch:
    """What is kept of a batch from its first step to its last, and the handle of each."""

    step: Step = field(default=Step.SENT, init=False)


class Rules:
    """One dispatcher's. Every method raises what the contract says where it is broken."""

    def __init__(self, name: str, in_flight: int) -> None:
        self._name, self._in_flight = name, in_flight
        self._room: int | None = None
        self._closed = False
        self._under_way = 0
        self._lost: str | None = None

    def open(self, room: int) -> None:
        """`room`: most tokens of a dispatch."""
        if self._room is not None:
            raise RuntimeError(f"{self._name} was opened before")
        self._room = room

    def begin(self, tokens: int) -> None:
        """A batch of so many tokens is about to be sent."""
        room = self._ready()
        if tokens > room:
            raise ValueError(f"{self._name}: {tokens} tokens in one dispatch, and there is room for {room}")
        if self._under_way == self._in_flight:
            raise RuntimeError(f"{self._name}: {self._in_flight} batches are in flight, and no more can be")
        self._under_way += 1

    def advance(self, batch: Batch, to: Step) -> None:
        """It is the turn of a batch's next step."""
        self._ready()
        if batch.step + 1 != to:
            raise RuntimeError(f"{self._name}: each step of a batch is made once, in its turn")
        batch.step = to
        self._under_way -= to is Step.SUMMED

    def close(self) -> None:
        """Nothing may follow."""
        self._closed = True

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Around what fails when a rank is gone: from then on everything does."""
        try:
            yield
        except RuntimeError as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._lost = f"{self._name}: a rank is gone or does not answer ({said})"
            raise PeerLost(self._lost) from error

    def _ready(self) -> int:
        if self._lost is not None:
            raise PeerLost(self._lost)
        if self._room is None or self._closed:
            raise RuntimeError(f"{self._name} is not open")
        return self._room


def share(name: str, traffic: Traffic, world: int) -> int:
    """Experts of a rank."""
    if traffic.experts % world:
        raise ConfigError(f"{name}: {traffic.experts} experts do not spread over {world} ranks; use a divisor of them")
    return traffic.experts // world
