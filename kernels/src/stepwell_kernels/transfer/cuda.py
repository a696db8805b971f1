"""The copy kernel in CUDA C++, pages.cu."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.nvrtc import Library, architecture, compiled
from stepwell_kernels.transfer.plan import Plan, plan
from stepwell_kernels.transfer.rule import BLOCKS

THREADS = 512
UNROLL = 8
"""Loads of a thread before its first store, as pages.cu is compiled."""


class PageKernel:
    """Enqueues what plans say on a stream of one device."""

    def __init__(self, device: torch.device, cache: Path) -> None:
        source = files("stepwell_kernels.transfer").joinpath("pages.cu").read_text()
        library = Library(compiled(source, architecture(device), cache), device)
        names = {(Way.LOAD, False): "load", (Way.SAVE, False): "save"}
        names |= {(Way.LOAD, True): "load_parts", (Way.SAVE, True): "save_parts"}
        self._kernels = {which: library.kernel(name) for which, name in names.items()}

    def enqueue(self, way: Way, told: Plan, blocks: int, stream: int) -> None:
        """On at most so many blocks; the plan may change afterwards."""
        tiles = -(-told.pages * told.run.value // (THREADS * UNROLL))
        self._kernels[way, told.parts > 1].launch(min(blocks, tiles), THREADS, told, stream)


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
        if not len(pairs):
            return
        pages = pairs.uploaded.data_ptr()
        slots = pages + len(pairs) * pairs.uploaded.itemsize
        told = plan(self._layout, first, layers, len(pairs), pages, slots)
        stream = torch.cuda.current_stream(pairs.uploaded.device).cuda_stream
        self._kernel.enqueue(way, told, self.blocks_of(way), stream)
