"""The `[storage]` table when `use = "file"`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class FileConfig:
    """Where pages are kept, how many of them, and how they get there."""

    path: Path
    """The folder; made where it is missing. Several processes may share it."""
    gib: float = 10.0
    """Most that the folder may take, in GiB; beyond it the oldest pages leave."""
    direct: bool | Literal["auto"] = "auto"
    """Past the page cache (O_DIRECT): `auto` where the filesystem can."""
    threads: int = 4
    """Transfers of one batch that run at once."""
    durable: bool = False
    """Sync before a page becomes visible. Without it a power loss may cost pages, never their truth."""
    segment_mib: float = 256.0
    """Size of a segment file; between a 256th and a 16th of the limit, whatever is asked."""
    min_free_gib: float = 1.0
    """Room on the filesystem that is left to others, though never more than a twentieth of it."""

    def __post_init__(self) -> None:
        for name in ("gib", "segment_mib"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be more than 0")
        if not 1 <= self.threads <= 64:
            raise ValueError("threads: must be 1 to 64")
        if self.min_free_gib < 0:
            raise ValueError("min_free_gib: must not be less than 0")
