"""Copies by the GPU's copy engines, which leave its multiprocessors to others.

An engine needs about a microsecond a copy, whatever its size, so small pieces are slow. A page's layers lie side by
side in the arena, so they cross the link as one copy to or from a staging buffer in device memory, beside which the
pieces are brought into place at the speed of that memory:

    arena     | slot 7: layer 0 K V, layer 1 K V, ... |          one copy a page
    staging   | page | page | page | page |                      a part is filled while another is emptied
    pool      K: layer 0 [page 3], layer 1 [page 3], ...  V: ...
"""

from __future__ import annotations

from dataclasses import replace

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.batch import Batch
from stepwell_kernels.transfer.cuda import PageKernel
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.pieces import pieces, runs

PART_BYTES = 16 << 20
PARTS = 3


class _Staging:
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


class EngineMover(Mover):
    """By copy engines, through staging where there is a kernel that brings pieces into place, on `blocks` blocks."""

    method = "engine"

    def __init__(self, pool: PagePool, host: HostPages, blocks: int, batch: Batch, kernel: PageKernel | None) -> None:
        super().__init__(pool, host, blocks)
        self._blocks = blocks
        self._layout = layout(pool, host)
        self._device = pool.sides[0].device
        self._batch = batch
        self._kernel = kernel
        self._engine = {way: torch.cuda.Stream(self._device) for way in Way}
        part = max(PART_BYTES, pool.shape.page_bytes)
        self._staging = {way: _Staging(part, self._device) for way in Way} if kernel else {}

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        if not len(pairs):
            return
        if self._kernel is None:
            self._direct(way, first, layers, pairs)
        elif way is Way.LOAD:
            self._load_staged(self._kernel, first, layers, pairs)
        else:
            self._save_staged(self._kernel, first, layers, pairs)

    def _direct(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        """A copy a piece."""
        stream, current = self._engine[way], torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        self._batch.enqueue(pieces(way, self._layout, first, layers, pairs.device, pairs.host), stream.cuda_stream)
        current.wait_stream(stream)

    def _load_staged(self, kernel: PageKernel, first: int, layers: int, pairs: Pairs) -> None:
        engine, current = self._engine[Way.LOAD], torch.cuda.current_stream(self._device)
        staging = self._staging[Way.LOAD]
        engine.wait_stream(current)
        for some in self._parts(layers, len(pairs), staging):
            part, address = staging.take(engine)
            copies = runs(Way.LOAD, self._layout, first, layers, pairs.host[some], address)
            self._batch.enqueue(copies, engine.cuda_stream)
            current.wait_stream(engine)
            self._into_place(kernel, Way.LOAD, first, layers, pairs.uploaded[0][some], address)
            staging.give_back(part, current)

    def _save_staged(self, kernel: PageKernel, first: int, layers: int, pairs: Pairs) -> None:
        engine, current = self._engine[Way.SAVE], torch.cuda.current_stream(self._device)
        staging = self._staging[Way.SAVE]
        for some in self._parts(layers, len(pairs), staging):
            part, address = staging.take(current)
            self._into_place(kernel, Way.SAVE, first, layers, pairs.uploaded[0][some], address)
            engine.wait_stream(current)
            copies = runs(Way.SAVE, self._layout, first, layers, pairs.host[some], address)
            self._batch.enqueue(copies, engine.cuda_stream)
            staging.give_back(part, engine)
        current.wait_stream(engine)

    def _parts(self, layers: int, pages: int, staging: _Staging) -> list[slice]:
        step = staging.part_bytes // (layers * self._layout.layer_bytes)
        return [slice(begin, min(begin + step, pages)) for begin in range(0, pages, step)]

    def _into_place(
        self, kernel: PageKernel, way: Way, first: int, layers: int, pages: torch.Tensor, staging: int
    ) -> None:
        """Between staging, as an arena whose slots hold these layers only, and the pool."""
        bytes_of_layer = self._layout.layer_bytes
        staged = replace(self._layout, host=staging - first * bytes_of_layer, slot=layers * bytes_of_layer)
        kernel.enqueue(way, staged, first, layers, (pages, None), self._blocks)
