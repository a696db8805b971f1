"""The `[storage]` tables of the four offers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfig:
    """A folder of pages: what `nixl` and `nixl-gds` have in common."""

    path: Path
    """The folder; made where it is missing. Several processes may share it."""
    gib: float = 10.0
    """Most that the folder may take, in GiB; beyond it the oldest pages leave."""
    ttl_h: float = 0.0
    """Hours after which a page counts as missing; 0: never."""
    transfers: int = 4
    """NIXL transfers that one batch is cut into, all of them in flight at once."""
    segment_mib: float = 256.0
    """Size of a segment file; between a 256th and a 16th of the limit, whatever is asked."""
    min_free_gib: float = 1.0
    """Room on the filesystem that is left to others, though never more than a twentieth of it."""

    def __post_init__(self) -> None:
        for name in ("gib", "segment_mib"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be more than 0")
        for name in ("ttl_h", "min_free_gib"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be less than 0")
        if not 1 <= self.transfers <= 64:
            raise ValueError("transfers: must be 1 to 64")


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlConfig(FolderConfig):
    """`use = "nixl"`: NIXL's POSIX backend."""

    engine: Literal["aio", "uring"] = "aio"
    """How NIXL asks the kernel: Linux AIO or io_uring."""
    direct: bool | Literal["auto"] = "auto"
    """Past the page cache (O_DIRECT): `auto` where the filesystem can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdsConfig(FolderConfig):
    """`use = "nixl-gds"`: NIXL's GPUDirect Storage backends."""

    backend: Literal["GDS_MT", "GDS"] = "GDS_MT"
    """The one with threads, or the one with batches."""
