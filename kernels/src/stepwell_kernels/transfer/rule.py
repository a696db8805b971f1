"""Which method copies best, and on how many blocks.

Measured on an H200 over PCIe 5 x16, 8,192 scattered tokens, 32 layers, 2,048 bytes of K and of V a token and layer, in
one run of `stepwell bench transfer` in which a large copy reached 54.1 GB/s to the device and 54.8 from it, and two at
once 92.3 (in other runs up to 101):

| GB/s, to the device / from it | page 1      | page 16     | page 64     | both at once   | products slower by |
|-------------------------------|-------------|-------------|-------------|----------------|--------------------|
| engine, through staging       | 52.8 / 51.2 | 53.8 / 54.2 | 54.0 / 54.4 | 70, 92, 94     | 1% / 0%            |
| kernel, 4 / 2 blocks          | 51.1 / 52.1 | 50.9 / 52.1 | 51.1 / 52.2 | 64, 64, 64     | 10% / 9%           |

Saves by 4 blocks slow products by 110%, loads by 2 blocks by 9%, at 33 GB/s meanwhile. Apart from that command: an
engine with a copy a piece reached 40 / 43 at page 16 and 46 / 50 at page 64, and one block slowed products by 10% too.

So engines win wherever a page's run of layers is long enough for the microsecond of CPU that each run takes. Stores
that fill the link from more than two multiprocessors hold up the memory traffic of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stepwell_kernels.transfer.mover import Way

ENGINE_RUN: Mapping[Way, int] = MappingProxyType({Way.LOAD: 256 << 10, Way.SAVE: 128 << 10})
"""Bytes of a page's layers from which an engine copies them; saves run beside compute, which a kernel would slow."""
BLOCKS: Mapping[Way, int] = MappingProxyType({Way.LOAD: 4, Way.SAVE: 2})
"""Thread blocks that fill the link with pieces of any size."""


def by_engine(way: Way, run_bytes: int) -> bool:
    """Whether an engine copies runs of this size better than a kernel does."""
    return run_bytes >= ENGINE_RUN[way]
