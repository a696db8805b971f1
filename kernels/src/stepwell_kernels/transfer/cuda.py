"""The copy kernel in CUDA C++, pages.cu."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.layout import UNIT, Layout, layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.nvrtc import Library, architecture, compiled
from stepwell_kernels.transfer.plan import plan
from stepwell_kernels.transfer.rule import BLOCKS

THREADS = 512
UNROLL = 8
"""Loads of a thread before its first store, as pages.cu is compiled."""


class PageKernel:
    """Enqueues copies of layers on the current stream of one device."""

    def __init__(self, device: torch.device, cache: Path) -> None:
        source = files("stepwell_kernels.transfer").joinpath("pages.cu").read_text()
        library = Library(compiled(source, architecture(device), cache), device)
        self._kernels = {Way.LOAD: library.kernel("load"), Way.SAVE: library.kernel("save")}
        self._device = device

    def enqueue(
        self, way: Way, at: Layout, first: int, layers: int, ids: tuple[torch.Tensor, torch.Tensor | None], blocks: int
    ) -> None:
        """Of pages `ids[0]` and slots `ids[1]`, or slots from 0 on, on at most so many blocks."""
        pages, slots = ids
        if not len(pages):
            return
        told = plan(at, first, layers, len(pages), pages.data_ptr(), 0 if slots is None else slots.data_ptr())
        units = len(pages) * layers * at.layer_bytes // UNIT
        stream = torch.cuda.current_stream(self._device).cuda_stream
        grid = max(1, min(blocks, -(-units // (THREADS * UNROLL))))
        self._kernels[way].launch(grid, THREADS, told, stream)


class CudaMover(Mover):
    """By the CUDA kernel, on at most `blocks` blocks; None: as many as fill the link."""

    method = "cuda"

    def __init__(self, pool: PagePool, host: HostPages, blocks: int | None, kernel: PageKernel) -> None:
        super().__init__(pool, host)
        self._blocks = blocks
        self._layout = layout(pool, host)
        self._kernel = kernel

    def blocks_of(self, way: Way) -> int:
        return self._blocks or BLOCKS[way]

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        ids = (pairs.uploaded[0], pairs.uploaded[1])
        self._kernel.enqueue(way, self._layout, first, layers, ids, self.blocks_of(way))
