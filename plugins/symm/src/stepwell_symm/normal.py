"""The offer `symm`: each token crosses once to each rank that has experts of it, and a sum comes back from there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell import Dispatched, Format
from stepwell_symm.batches import Batch, Step
from stepwell_symm.config import SymmConfig
from stepwell_symm.constants import Given, normal_constants
from stepwell_symm.device.back import back_kernel, gather_kernel
from stepwell_symm.device.plan import learn_kernel, plan_kernel
from stepwell_symm.device.send import arrive_kernel, send_kernel
from stepwell_symm.lane import Lane, Mark
from stepwell_symm.one_sided import OneSided, Ranks, Share
from stepwell_symm.places import Places

WARPS = 8
WAITING = 128
"""Most programs that wait for sums, so that they leave room for those that send them."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What a batch has."""

    slots: torch.Tensor
    book: torch.Tensor
    """See `learn_kernel`."""
    read: torch.Tensor
    """The same, on the host."""
    told: Mark
    """When it is there."""
    tokens: torch.Tensor
    scales: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


class Symm(OneSided):
    """Copies run beside the caller's stream. The host waits only for the numbers of rows, while rows still travel."""

    format = Format.ONCE

    def __init__(self, config: SymmConfig, rank: int, ranks: int, lane: Lane, share: Share) -> None:
        super().__init__(Ranks(rank, ranks), lane, share, config.dtype == "fp8", config.in_flight, config.timeout_s)
        self._programs = config.programs

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Batch:
        batch = self._begin(tokens)
        room, desk = self._rooms[batch.slot], self._desks[batch.slot]
        batch.lent = tokens, experts, weights = tokens.contiguous(), experts.contiguous(), weights.contiguous()
        with self._lane.aside():
            told = desk, experts, room.slots, batch.count, self._own
            self._lane.run(plan_kernel, self._ranks + 1, *told, warps=WARPS, **self._plan)
            self._lane.run(learn_kernel, 1, desk, room.book, self._own, warps=WARPS, **self._learn)
            room.read.copy_(room.book, non_blocking=True)
            room.told.record()
            given = tokens if self._eight else tokens.view(torch.int32)
            sent = desk, given, experts, weights, room.slots, room.book, batch.count, self._own
            self._lane.run(send_kernel, self._programs, *sent, warps=WARPS, **self._send)
            self._note(batch)
        return batch

    def dispatch_finish(self, handle: Batch) -> Dispatched[torch.Tensor]:
        handle.goes(Step.ARRIVED)
        room = self._rooms[handle.slot]
        room.told.synchronize()
        self._expect_peers()
        rows, *counts = room.read[2 * self._ranks :].tolist()
        self._lane.run(arrive_kernel, 1, self._desks[handle.slot], warps=WARPS, **self._arrive)
        handle.settle()
        self._expect_peers()
        return Dispatched(
            room.tokens[:rows],
            room.book[2 * self._ranks + 1 :],
            handle,
            room.experts[:rows],
            room.weights[:rows],
            room.scales[:rows] if self._eight else None,
            tuple(counts),
        )

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Batch:
        batch: Batch = dispatched.state
        batch.goes(Step.RETURNED)
        self._expect_peers()
        room, outputs = self._rooms[batch.slot], outputs.contiguous()
        batch.lent = (outputs,)
        with self._lane.aside():
            sent = self._desks[batch.slot], outputs.view(torch.int32), room.book[self._ranks :]
            self._lane.run(back_kernel, self._programs, *sent, warps=WARPS, **self._back)
            self._note(batch)
        return batch

    def combine_finish(self, handle: Batch) -> torch.Tensor:
        handle.goes(Step.ENDED)
        self._expect_peers()
        room, (outputs,) = self._rooms[handle.slot], handle.lent
        sums = outputs.new_empty((handle.count, self._row.hidden))
        parts = self._desks[handle.slot], room.slots, outputs, room.book[self._ranks :], sums, handle.count
        self._lane.run(gather_kernel, min(self._programs, WAITING), *parts, warps=WARPS, **self._gather)
        handle.settle()
        self._expect_peers()
        self._slots.give(handle.slot)
        return sums

    def _note(self, batch: Batch) -> None:
        mark = self._lane.mark()
        mark.record()
        batch.marks.append(mark)

    def _lay_out(self) -> int:
        self._places = Places.of(self._traffic, self._ranks, self._row, self._programs)
        given = Given(self._traffic, self._row, self._rank, self._ranks, self._lane.timed)
        constants = normal_constants(given, self._places, self._programs)
        self._plan, self._learn, self._send = constants["plan"], constants["learn"], constants["send"]
        self._arrive, self._back, self._gather = constants["arrive"], constants["back"], constants["gather"]
        return self._places.size

    def _make_room(self, own: torch.Tensor) -> None:
        self._rooms = [self._room(own, slot) for slot in range(self.in_flight)]

    def _room(self, own: torch.Tensor, slot: int) -> _Room:
        traffic, ranks, places = self._traffic, self._ranks, self._places
        rows = ranks * traffic.max_tokens

        def counted(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self._lane.device)

        book = 2 * ranks + 1 + self._own
        return _Room(
            counted(traffic.max_tokens, ranks),
            counted(book),
            self._lane.pinned((book,), torch.int32),
            self._lane.mark(),
            self._view(own, slot, places.tokens, self._kind, rows, traffic.hidden),
            self._view(own, slot, places.scales, torch.float32, rows, self._row.scales // 4),
            self._view(own, slot, places.experts, torch.int64, rows, traffic.top_k),
            self._view(own, slot, places.weights, torch.float32, rows, traffic.top_k),
        )
