"""Copies by the GPU's copy engines, which leave its multiprocessors to others.

A page's layers lie side by side in the arena, so they cross the link as one copy to or from a staging buffer in device
memory. A kernel that takes all of the device for some microseconds brings the pieces into place:

    arena     | slot 7: layer 0 K V, layer 1 K V, ... |          one copy a page
    staging   | page | page | page | page |                      parts are filled while others are emptied
    pool      K: layer 0 [page 3], layer 1 [page 3], ...  V: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.batch import Batch
from stepwell_kernels.transfer.cuda import PageKernel
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.pieces import runs

PART_BYTES, PARTS = 32 << 20, 4
"""The kernel waits until multiprocessors are free, which beside large products takes more than a millisecond; the parts
must hold what crosses the link meanwhile."""


class Staging:
    """Parts of a buffer that take turns, and when each is free again."""

    def __init__(self, part_bytes: int, device: torch.device) -> None:
        self.part_bytes = part_bytes
        self._memory = torch.empty(PARTS * part_bytes, dtype=torch.uint8, device=device)
        self._free: list[torch.cuda.Event | None] = [None] * PARTS
        self._next = 0

    def take(self, stream: torch.cuda.Stream) -> tuple[int, int]:
        """The next part, which `stream` waits for, and its address."""
        part = self._next
        self._next = (part + 1) % PARTS
        event = self._free[part]
        if event is not None:
            stream.wait_event(event)
        return part, self._memory.data_ptr() + part * self.part_bytes

    def give_back(self, part: int, stream: torch.cuda.Stream) -> None:
        """When what `stream` has been given so far is done."""
        self._free[part] = stream.record_event()


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
        engine, current = self._engines.streams[way], torch.cuda.current_stream(self._engines.device)
        staging = self._engines.staging[way]
        if way is Way.LOAD:
            engine.wait_stream(current)
        for some in self._parts(layers, len(pairs), staging.part_bytes):
            filler, emptier = (engine, current) if way is Way.LOAD else (current, engine)
            part, address = staging.take(filler)
            copies = runs(way, self._layout, first, layers, pairs.host[some], address)
            if way is Way.LOAD:
                self._engines.batch.enqueue(copies, engine.cuda_stream)
                current.wait_stream(engine)
                self._into_place(way, first, layers, pairs.uploaded[0][some], address)
            else:
                self._into_place(way, first, layers, pairs.uploaded[0][some], address)
                engine.wait_stream(current)
                self._engines.batch.enqueue(copies, engine.cuda_stream)
            staging.give_back(part, emptier)
        if way is Way.SAVE:
            current.wait_stream(engine)

    def _parts(self, layers: int, pages: int, part_bytes: int) -> Iterator[slice]:
        step = part_bytes // (layers * self._layout.layer_bytes)
        for begin in range(0, pages, step):
            yield slice(begin, min(begin + step, pages))

    def _into_place(self, way: Way, first: int, layers: int, pages: torch.Tensor, staging: int) -> None:
        """Between the pool and staging, which is as an arena whose slots hold these layers only."""
        bytes_of_layer = self._layout.layer_bytes
        staged = replace(self._layout, host=staging - first * bytes_of_layer, slot=layers * bytes_of_layer)
        self._engines.kernel.enqueue(way, staged, first, layers, (pages, None), self._engines.blocks)
