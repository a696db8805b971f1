"""Which method copies best, on how many blocks, and which layers go together.

Measured on an H200 over PCIe 5 x16 by `stepwell bench transfer`: 8,192 scattered tokens, 32 layers, 2,048 bytes of K
and of V a token and layer. One large copy reached 54 to 55 GB/s either way, two at once 92 to 101.

| GB/s, to the device / from it | page 1      | page 16     | page 64     | products beside it take longer by |
|-------------------------------|-------------|-------------|-------------|-----------------------------------|
| engine, by staging            | 53.9 / 50.8 | 54.4 / 54.4 | 54.2 / 54.4 | 1% / 0%                           |
| kernel, 4 blocks              | 51.3 / 51.9 | 51.3 / 52.4 | 51.2 / 52.4 | 10% / 110%                        |
| kernel, 2 blocks              | 50.4 / 52.1 | 49.8 / 52.2 | 50.5 / 52.0 | 9% / 10%                          |
| engine, a copy a piece        | 1 / 3       | 40 / 43     | 46 / 50     | 0%                                |
| engines, both ways at once    | 73          | 91          | 93          |                                   |
| kernels, both ways at once    | 65          | 65          | 64          |                                   |

So engines win wherever a page's run of layers is long enough for the microsecond of CPU that each run takes. A large
product takes a wave more as soon as a single multiprocessor is missing, and stores that fill the link from more than
two of them hold up the memory traffic of all others.
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
