"""The `[storage]` table when `use = "aibrix"`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepwell import Capability

REMOTE = ("infinistore", "hpkv", "pris", "eic")
"""Connectors that take their addresses from AIBrix's own environment variables."""

CAN = {
    "rocksdb": frozenset({Capability.PERSISTENT, Capability.LISTS}),
    "shfs": frozenset({Capability.PERSISTENT, Capability.SHARED, Capability.LISTS}),
}


@dataclass(frozen=True, slots=True)
class AibrixConfig:
    """Which of AIBrix's connectors keeps the pages, and where."""

    connector: Literal["rocksdb", "shfs", "infinistore", "hpkv", "pris", "eic"] = "rocksdb"
    """`rocksdb`: a database of this process; `shfs`: files in a folder that several hosts share. The others are remote
    stores, set up by AIBrix's own AIBRIX_KV_CACHE_OL_* variables."""
    path: Path | None = None
    """The folder of `rocksdb` and `shfs`; made where it is missing."""
    ttl_h: float = 24.0
    """Hours after which RocksDB drops a page, in the course of its compactions."""
    threads: int = 4
    """Pages of a batch that the connector moves at once."""
    namespace: str = "stepwell"
    """The namespace that a remote store is asked for."""

    def __post_init__(self) -> None:
        if self.connector in REMOTE and self.path is not None:
            raise ValueError(f"path: has no meaning for the {self.connector} connector; leave it out")
        if self.connector not in REMOTE and self.path is None:
            raise ValueError(f"path: is required for the {self.connector} connector; name a folder")
        if not 1 <= self.threads <= 64:
            raise ValueError("threads: must be 1 to 64")
        if not 0.001 <= self.ttl_h <= 24 * 365 * 10:
            raise ValueError("ttl_h: must be between 0.001 and ten years")

    @property
    def provides(self) -> frozenset[Capability]:
        """What this connector can do."""
        return CAN.get(self.connector, frozenset({Capability.SHARED}))
