"""What moves pages between one group's device pool and its slots in the host arena, and the reference that does so.

All methods keep the order of the stream that is current when they are called, and wait for nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from stepwell_kernels.copies import HostPages, load_layer, save_layer
from stepwell_kernels.pool import PagePool


class Way(Enum):
    """Where pages go."""

    LOAD = "h2d"
    SAVE = "d2h"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pages of the device pool, each with its slot in the arena. Whoever copies keeps them until the copies ended."""

    device: NDArray[np.int32]
    host: NDArray[np.int32]
    uploaded: torch.Tensor
    """Both in memory of the pool's device: [2, pairs], int32."""

    def __len__(self) -> int:
        return len(self.device)


class Mover(ABC):
    """Copies pages of one pool from and to one arena, a layer or all of them."""

    method: str
    """As it is chosen by name."""

    def __init__(self, pool: PagePool, host: HostPages) -> None:
        self.pool = pool
        self.host = host

    def pairs(self, device: NDArray[np.int32], host: NDArray[np.int32]) -> Pairs:
        """Check and upload the ids, in the order of the current stream. Raises IndexError, ValueError."""
        if device.shape != host.shape or device.ndim != 1:
            raise ValueError(f"pages {device.shape} and slots {host.shape} are not pairs")
        _inside("page", device, self.pool.pages)
        _inside("slot", host, self.host.slots)
        both = torch.from_numpy(np.stack([device, host]).astype(np.int32, copy=False))
        target = self.pool.sides[0].device
        if target.type == "cuda" and len(device):
            both = both.pin_memory().to(target, non_blocking=True)
        return Pairs(device, host, both)

    def load_layer(self, layer: int, pairs: Pairs) -> None:
        """Copy one layer from the arena to the device."""
        self.move(Way.LOAD, layer, 1, pairs)

    def load(self, pairs: Pairs) -> None:
        """Copy all layers from the arena to the device."""
        self.move(Way.LOAD, 0, self.pool.shape.layers, pairs)

    def save_layer(self, layer: int, pairs: Pairs) -> None:
        """Copy one layer from the device to the arena."""
        self.move(Way.SAVE, layer, 1, pairs)

    def save(self, pairs: Pairs) -> None:
        """Copy all layers from the device to the arena."""
        self.move(Way.SAVE, 0, self.pool.shape.layers, pairs)

    def load_layers(self, layers: range, pairs: Pairs) -> None:
        """Copy layers that follow one another from the arena to the device."""
        self.move(Way.LOAD, layers.start, len(layers), pairs)

    def chosen(self, way: Way, layers: int) -> Mover:
        """What copies so many layers at once; itself, unless it chooses between others."""
        return self

    def blocks_of(self, way: Way) -> int | None:
        """Thread blocks that wait on the link, at most; None where no kernel does."""
        return None

    @abstractmethod
    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        """Copy layers `first` to `first + layers` of all pairs."""


class TorchMover(Mover):
    """The reference: any device and any shape. On CUDA it waits for its copies, as pageable memory is between."""

    method = "torch"

    def move(self, way: Way, first: int, layers: int, pairs: Pairs) -> None:
        if not len(pairs):
            return
        copy = load_layer if way is Way.LOAD else save_layer
        device, host = pairs.uploaded[0].long(), torch.from_numpy(pairs.host.astype(np.int64))
        for layer in range(first, first + layers):
            copy(self.pool, self.host, layer, device, host)


STAGE_LAYERS = 8


def stages(layers: int) -> list[range]:
    """Layers to load together where each is needed as soon as it may be: the first alone, later ones in larger groups.

    Each group costs launches and a wait for free multiprocessors, and longer runs cross the link faster.
    """
    found: list[range] = []
    begin, size = 0, 1
    while begin < layers:
        found.append(range(begin, min(begin + size, layers)))
        begin, size = found[-1].stop, min(found[-1].stop, STAGE_LAYERS)
    return found


def _inside(what: str, ids: NDArray[np.int32], count: int) -> None:
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < count):
        raise IndexError(f"{what} ids from {ids.min()} to {ids.max()} are not all of 0 to {count - 1}")
