"""Copies by whichever of an engine and a kernel is better for the run of layers that is asked for."""

from __future__ import annotations

from stepwell_kernels.copies import HostPages
from stepwell_kernels.pool import PagePool
from stepwell_kernels.transfer.mover import Mover, Pairs, Way
from stepwell_kernels.transfer.rule import by_engine


class AutoMover(Mover):
    """By the rule of rule.py."""

    method = "auto"

    def __init__(self, pool: PagePool, host: HostPages, kernel: Mover, engine: Mover) -> None:
        super().__init__(pool, host)
        self._kernel, self._engine = kernel, engine
        self._layer_bytes = pool.shape.page_bytes // pool.shape.layers // host.parts

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        self.chosen(way, layers).move(way, first, layers, pairs)

    def blocks_of(self, way: Way) -> int | None:
        return self.chosen(way, self.pool.shape.layers).blocks_of(way)

    def chosen(self, way: Way, layers: int) -> Mover:
        return self._engine if by_engine(way, layers * self._layer_bytes) else self._kernel
