"""Copies by the GPU's copy engines, which leave its multiprocessors to others.

A page's layers lie side by side in the arena, so they cross the link as one copy to or from a staging buffer in device
memory. A kernel that takes all of the device for some microseconds brings the pieces into place:

    arena     | slot 7: layer 0 K V, layer 1 K V, ... |          one copy a page, or a part of it
    staging   | page | page | page | page |                      parts are filled while others are emptied
    pool      K: layer 0 [page 3], layer 1 [page 3], ...  V: ...
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.batch import Batch
from stepwell_kernels.transfer.cuda import PageKernel
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.pieces import Copies, runs
from stepwell_kernels.transfer.plan import Plan, plan

PART_BYTES, PARTS = 32 << 20, 4
"""The kernel waits until multiprocessors are free, which beside large products takes more than a millisecond; the parts
must hold what crosses the link meanwhile."""


class Part:
    """Of a staging buffer: where it begins, and what its next user waits for."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.full, self.free = torch.cuda.Event(), torch.cuda.Event()


class Staging:
    """Parts of a buffer that take turns."""

    def __init__(self, part_bytes: int, device: torch.device) -> None:
        self.part_bytes = part_bytes
        self._memory = torch.empty(PARTS * part_bytes, dtype=torch.uint8, device=device)
        self._turns = cycle([Part(self._memory.data_ptr() + i * part_bytes) for i in range(PARTS)])

    def next(self) -> Part:
        """The one that was used longest ago."""
        return next(self._turns)


class Engines:
    """A device's copy engines, each with its stream and staging; movers of several groups share them."""

    def __init__(self, device: torch.device, batch: Batch, kernel: PageKernel, largest_page: int) -> None:
        self.device = device
        self.batch = batch
        self.kernel = kernel
        self.streams = {way: torch.cuda.Stream(device) for way in Way}
        self.staging = {way: Staging(max(PART_BYTES, largest_page), device) for way in Way}
        self.blocks = torch.cuda.get_device_properties(device).multi_processor_count


class EngineMover(Mover):
    """By copy engines, through staging."""

    method = "engine"

    def __init__(self, pool: PagePool, host: HostPages, engines: Engines) -> None:
        super().__init__(pool, host)
        self._layout = layout(pool, host)
        self._engines = engines

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        if not len(pairs):
            return
        engine, current = self._engines.streams[way], torch.cuda.current_stream(self._engines.device)
        staging, run = self._engines.staging[way], layers * self._layout.layer_bytes
        told = self._into_place(first, layers, pairs)
        engine.wait_stream(current)
        step = staging.part_bytes // run
        for begin in range(0, len(pairs), step):
            part, slots = staging.next(), pairs.host[begin : begin + step]
            told.host, told.pages = part.address, len(slots)
            told.device_ids = pairs.uploaded.data_ptr() + begin * pairs.uploaded.itemsize
            copies = runs(way, self._layout, first, layers, slots, part.address)
            (self._load if way is Way.LOAD else self._save)(part, copies, told, engine, current)
        if way is Way.SAVE:
            current.wait_stream(engine)

    def _load(
        self, part: Part, copies: Copies, told: Plan, engine: torch.cuda.Stream, current: torch.cuda.Stream
    ) -> None:
        engine.wait_event(part.free)
        self._engines.batch.enqueue(copies, engine.cuda_stream)
        part.full.record(engine)
        current.wait_event(part.full)
        self._engines.kernel.enqueue(Way.LOAD, told, self._engines.blocks, current.cuda_stream)
        part.free.record(current)

    def _save(
        self, part: Part, copies: Copies, told: Plan, engine: torch.cuda.Stream, current: torch.cuda.Stream
    ) -> None:
        current.wait_event(part.free)
        self._engines.kernel.enqueue(Way.SAVE, told, self._engines.blocks, current.cuda_stream)
        part.full.record(current)
        engine.wait_event(part.full)
        self._engines.batch.enqueue(copies, engine.cuda_stream)
        part.free.record(engine)

    def _into_place(self, first: int, layers: int, pairs: Pairs) -> Plan:
        """Between the pool and staging, which is as an arena whose slots hold these layers only, one after another."""
        staged = replace(self._layout, slot=layers * self._layout.layer_bytes, apart=layers * self._layout.part_bytes)
        return plan(staged, first, layers, len(pairs), pairs.uploaded.data_ptr(), 0)
