"""Random pages in a pinned arena and in a pool, and copies between them that are checked before they are timed."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stepwell_kernels import HostPages, PagePool, PageShape
from stepwell_kernels.transfer import Mover, Pairs, Way

POISON = 0xA5
SAMPLES = 48
"""Pages that are compared; what no copy may touch is looked at whole on the device."""
NOISE_BYTES = 1 << 26


class Arena:
    """Pinned host memory, and a view of it as slots for pages of any size."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes)
        self.memory = memoryview(self._map)
        self.octets = torch.frombuffer(self.memory, dtype=torch.uint8)
        noise = torch.randint(0, 256, (NOISE_BYTES,), dtype=torch.uint8)
        for begin in range(0, nbytes, NOISE_BYTES):
            self.octets[begin : begin + NOISE_BYTES] = noise.roll(begin // NOISE_BYTES)[: nbytes - begin]
        self._pinned = HostPages(self.memory, 0, nbytes, 1, PageShape(1, 1, 1, 1, torch.uint8))
        self._pinned.pin()

    def slots(self, shape: PageShape) -> HostPages:
        """As many as it holds, close together, with a part for each head."""
        size, parts = shape.page_bytes, shape.kv_heads
        return HostPages(self.memory, 0, size, len(self.memory) // size, shape, parts, size // parts)

    def close(self) -> None:
        """Unpin it."""
        self._pinned.unpin()


@dataclass(frozen=True, slots=True)
class Ids:
    """Pages of the pool and their slots."""

    device: NDArray[np.int32]
    host: NDArray[np.int32]


class Scene:
    """A pool of twice the pages that a copy moves; loads and saves have scattered halves, which do not meet."""

    def __init__(self, arena: Arena, shape: PageShape, pages: int, device: torch.device) -> None:
        self.pool = PagePool(shape, 2 * pages, device)
        self.host = arena.slots(shape)
        self._arena = arena.octets
        self.nbytes = pages * shape.page_bytes
        random = np.random.default_rng(shape.page_size)
        mine, theirs = (random.permutation(2 * pages).astype(np.int32) for _ in range(2))
        self.ids = {Way.LOAD: Ids(mine[:pages], theirs[:pages]), Way.SAVE: Ids(mine[pages:], theirs[pages:])}

    def copier(self, mover: Mover, way: Way) -> Callable[[], None]:
        """Enqueues all layers of this way's pages."""
        pairs: Pairs = mover.pairs(self.ids[way].device, self.ids[way].host)
        return (lambda: mover.load(pairs)) if way is Way.LOAD else (lambda: mover.save(pairs))

    def right(self, way: Way, copy: Callable[[], None]) -> bool:
        """Whether a copy into poison brings what it should, and touches nothing else."""
        ids = self.ids[way]
        sample = np.unique(np.linspace(0, len(ids.device) - 1, SAMPLES).astype(int))
        other = self.ids[Way.SAVE if way is Way.LOAD else Way.LOAD]
        if way is Way.LOAD:
            for side in self.pool.sides:
                octets(side).fill_(POISON)
        else:
            self._noise()
            for slot in (*ids.host[sample], *other.host[sample]):
                self._slot(slot)[:] = POISON
        copy()
        torch.cuda.synchronize()
        same = all(self._equal(ids.device[i], ids.host[i]) for i in sample)
        if way is Way.SAVE:
            return same and all(bool((self._slot(slot) == POISON).all()) for slot in other.host[sample])
        rest = torch.from_numpy(other.device).long().to(self.pool.sides[0].device)
        layers = range(self.pool.shape.layers)
        return same and all(
            bool((octets(side[layer].index_select(0, rest)) == POISON).all())
            for side in self.pool.sides
            for layer in layers
        )

    def _noise(self) -> None:
        for side in self.pool.sides:
            flat = octets(side).view(-1)
            noise = torch.randint(0, 256, (min(NOISE_BYTES, len(flat)),), dtype=torch.uint8, device=side.device)
            for begin in range(0, len(flat), NOISE_BYTES):
                flat[begin : begin + NOISE_BYTES] = noise[: len(flat) - begin]
                noise = noise.roll(1)

    def _slot(self, slot: int) -> torch.Tensor:
        size = self.pool.shape.page_bytes
        return self._arena[int(slot) * size :][:size]

    def _equal(self, page: int, slot: int) -> bool:
        return all(
            torch.equal(octets(mine[:, page]).cpu(), octets(theirs[slot].flatten(2, 3)))
            for mine, theirs in zip(self.pool.sides, self.host.sides, strict=True)
        )


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, so that no bits are taken for NaN."""
    return tensor.contiguous().view(torch.uint8)
