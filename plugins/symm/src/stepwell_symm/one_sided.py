"""What both modes have in common: memory that ranks share, batches under way, and what happens when a rank is gone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from stepwell import ConfigError, Dispatcher, PeerLost, Traffic
from stepwell_symm.batches import Batch, Desks, Slots
from stepwell_symm.lane import Lane
from stepwell_symm.places import RUN, SIZES, Row
from stepwell_symm.shared import Shared

Share = Callable[[int], Shared]
"""So many bytes on each rank."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which this one is, of how many."""

    rank: int
    count: int


class OneSided(Dispatcher[torch.Tensor]):
    """Stores into the others' memory; never reads there, so a rank waits only for words in its own."""

    def __init__(self, who: Ranks, lane: Lane, share: Share, eight: bool, in_flight: int, timeout_s: float) -> None:
        self.in_flight = in_flight
        self._rank, self._ranks = who.rank, who.count
        self._lane, self._share, self._eight, self._timeout_s = lane, share, eight, timeout_s
        self._slots = Slots(in_flight)
        self._shared: Shared | None = None

    def open(self, traffic: Traffic) -> None:
        self._row = _row(traffic, self._ranks, self._eight)
        self._traffic, self._own = traffic, traffic.experts // self._ranks
        self._limit = min(self.capacity or traffic.max_tokens, traffic.max_tokens)
        self._size = self._lay_out()
        self._shared = self._share(self.in_flight * self._size)
        patience = int(self._timeout_s * 1e9) if self._lane.timed else 1
        self._desks = Desks(self._lane, self._shared.peers, self.in_flight, self._size, patience)
        self._make_room(self._shared.own)

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            self._lane.quiet(self._desks.lost)
            shared.leave()

    @abstractmethod
    def _lay_out(self) -> int:
        """Bytes that a batch takes of the shared memory."""

    @abstractmethod
    def _make_room(self, own: torch.Tensor) -> None:
        """Views of it, and what else each batch needs."""

    def _begin(self, tokens: torch.Tensor) -> Batch:
        if len(tokens) > self._limit:
            raise ValueError(f"{len(tokens)} tokens are more than the {self._limit} that a rank may bring")
        self._expect_peers()
        return Batch(self._slots.take(), len(tokens))

    def _expect_peers(self) -> None:
        if self._shared is None:
            raise RuntimeError("this dispatcher is not open")
        if self._desks.given_up:
            raise PeerLost(f"a rank that experts are spread over was silent for {self._timeout_s:g} s")

    def _view(self, own: torch.Tensor, slot: int, place: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        begin = slot * self._size + place
        return own[begin : begin + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    @property
    def _kind(self) -> torch.dtype:
        """Of tokens as they arrive."""
        return torch.float8_e4m3fn if self._eight else getattr(torch, self._traffic.dtype)


def _row(traffic: Traffic, ranks: int, eight: bool) -> Row:
    if traffic.dtype not in SIZES:
        raise ConfigError(f"dispatch by symm moves {' or '.join(SIZES)}, not {traffic.dtype}")
    row = Row(traffic.hidden, SIZES[traffic.dtype], eight)
    if row.sums % 16:
        raise ConfigError(f"dispatch by symm moves 16 bytes at a time; a hidden size of {row.hidden} is no multiple")
    if eight and row.hidden % RUN:
        raise ConfigError(f"dtype fp8 has a scale for each {RUN} numbers; a hidden size of {row.hidden} is no multiple")
    if traffic.experts % ranks:
        raise ConfigError(f"{traffic.experts} experts cannot be spread evenly over {ranks} ranks")
    return row
