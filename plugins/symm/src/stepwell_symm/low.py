"""The offer `symm-low-latency`: small batches in four kernels, without a word to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell import Dispatched, Format, Traffic
from stepwell_symm.batches import Batch, Step
from stepwell_symm.config import SymmLowConfig
from stepwell_symm.constants import Given, low_constants
from stepwell_symm.device.back import gather_kernel
from stepwell_symm.device.low import low_send_kernel, reduce_kernel, spread_kernel
from stepwell_symm.lane import Lane
from stepwell_symm.one_sided import OneSided, Ranks, Share
from stepwell_symm.places import LowPlaces

WARPS = 8
WAITING = 256
"""Most programs of a kernel that waits for others, so that it leaves room for those that it waits for."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What a batch has."""

    slots: torch.Tensor
    places: torch.Tensor
    counts: torch.Tensor
    arrived: torch.Tensor
    scales: torch.Tensor


class SymmLow(OneSided):
    """All in the caller's stream. A token crosses once, too; it is spread over its experts where it arrives."""

    format = Format.MASKED

    def __init__(self, config: SymmLowConfig, rank: int, ranks: int, lane: Lane, share: Share) -> None:
        super().__init__(Ranks(rank, ranks), lane, share, config.dtype == "fp8", config.in_flight, config.timeout_s)
        self._most = config.capacity

    def open(self, traffic: Traffic) -> None:
        self.capacity = min(self._most, traffic.max_tokens)
        super().open(traffic)

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Batch:
        batch = self._begin(tokens)
        batch.lent = tokens, experts, weights = tokens.contiguous(), experts.contiguous(), weights.contiguous()
        given = tokens if self._eight else tokens.view(torch.int32)
        sent = self._desks[batch.slot], given, experts, weights, self._rooms[batch.slot].slots, batch.count, self._own
        self._lane.run(low_send_kernel, min(batch.count, WAITING) + 1, *sent, warps=WARPS, **self._send)
        return batch

    def dispatch_finish(self, handle: Batch) -> Dispatched[torch.Tensor]:
        handle.goes(Step.ARRIVED)
        self._expect_peers()
        room = self._rooms[handle.slot]
        arrived = room.arrived.view(torch.int32), room.scales, room.counts, room.places, self._own
        programs = min(self._rows, WAITING) + 1
        self._lane.run(spread_kernel, programs, self._desks[handle.slot], *arrived, warps=WARPS, **self._spread)
        handle.settle()
        self._expect_peers()
        return Dispatched(room.arrived, room.counts, handle, scales=room.scales if self._eight else None)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Batch:
        batch: Batch = dispatched.state
        batch.goes(Step.RETURNED)
        self._expect_peers()
        outputs = outputs.contiguous()
        batch.lent = (outputs,)
        sent = self._desks[batch.slot], outputs, self._rooms[batch.slot].places, self._own
        self._lane.run(reduce_kernel, self._rows, *sent, warps=WARPS, **self._reduce)
        return batch

    def combine_finish(self, handle: Batch) -> torch.Tensor:
        handle.goes(Step.ENDED)
        self._expect_peers()
        room, (outputs,) = self._rooms[handle.slot], handle.lent
        sums = outputs.new_empty((handle.count, self._row.hidden))
        programs = min(max(handle.count, 1), WAITING)
        parts = self._desks[handle.slot], room.slots, outputs, room.places, sums, handle.count
        self._lane.run(gather_kernel, programs, *parts, warps=WARPS, **self._gather)
        handle.settle()
        self._expect_peers()
        self._slots.give(handle.slot)
        return sums

    def _lay_out(self) -> int:
        self._rows = self._ranks * self._limit
        places = LowPlaces.of(self._traffic, self._ranks, self._row, self._limit)
        given = Given(self._traffic, self._row, self._rank, self._ranks, self._lane.timed)
        constants = low_constants(given, places, self._limit)
        self._send, self._spread = constants["send"], constants["spread"]
        self._reduce, self._gather = constants["reduce"], constants["gather"]
        return places.size

    def _make_room(self, own: torch.Tensor) -> None:
        self._rooms = [self._room() for _ in range(self.in_flight)]

    def _room(self) -> _Room:
        traffic, rows = self._traffic, self._rows

        def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._lane.device)

        return _Room(
            zeros(torch.int32, self._limit, self._ranks),
            zeros(torch.int32, rows, traffic.top_k),
            zeros(torch.int32, self._own),
            zeros(self._kind, self._own, rows, traffic.hidden),
            zeros(torch.float32, self._own, rows, self._row.scales // 4),
        )
