"""The arena as another process sees it: the same memory by its descriptor, and as much of each slot as is its own."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from stepwell.cache.arena import Region, Slotted


class Mapped(Slotted):
    """Implements ArenaView. The mapping goes with the last view of it."""

    def __init__(self, fd: int, nbytes: int, regions: Sequence[Region], name: str = "") -> None:
        self._map = mmap.mmap(fd, nbytes)
        if hasattr(mmap, "MADV_DONTDUMP"):
            with suppress(OSError):  # a wish: a crash should not write all of it to a core file
                self._map.madvise(mmap.MADV_DONTDUMP)
        super().__init__(memoryview(self._map), int(np.frombuffer(self._map, dtype=np.uint8).ctypes.data), regions)
        self.fd, self.name = fd, name
