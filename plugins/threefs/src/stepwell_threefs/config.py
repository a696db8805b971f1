"""The `[storage]` table when `use = "3fs"`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepwell.settings import above_zero, at_least

MOST_THREADS = 256
MOST_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class ThreefsConfig:
    """Where pages are kept, how many of them, and how they get there."""

    path: Path
    """A folder on the mount; made where it is missing. Processes on many nodes may share it."""
    gib: float = 100.0
    """Most that the pages in the folder take, in GiB; beyond it the oldest segments leave."""
    usrbio: bool | Literal["auto"] = "auto"
    """Move pages through USRBIO: `auto` where its library is installed and the folder lies on 3FS."""
    threads: int = 8
    """Without USRBIO: transfers at once."""
    entries: int = 256
    """With USRBIO: pages under way in one ring. Each call has a ring to itself."""
    staging_mib: int = 64
    """With USRBIO: memory of a ring through which pages are copied where the host tier has no name in /dev/shm."""
    segment_mib: float = 1024.0
    """Size of a file; at most a 16th of `gib`, whatever is asked."""
    refresh_s: float = 0.0
    """How long what others have stored may go unseen: a miss looks for news only if the last look is older."""

    def __post_init__(self) -> None:
        for name in ("gib", "segment_mib"):
            above_zero(name, getattr(self, name))
        for name in ("threads", "entries", "staging_mib"):
            at_least(name, getattr(self, name), 1)
        for name, most in (("threads", MOST_THREADS), ("entries", MOST_ENTRIES)):
            if getattr(self, name) > most:
                raise ValueError(f"{name}: must be 1 to {most}")
        if self.refresh_s < 0:
            raise ValueError("refresh_s: must not be less than 0")

    @property
    def limit_bytes(self) -> int:
        """Most bytes of pages."""
        return int(self.gib * (1 << 30))

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment."""
        return max(1 << 16, int(min(self.segment_mib * (1 << 20), self.limit_bytes / 16)))
