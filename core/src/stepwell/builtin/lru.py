"""Least recently used: over pages of a tree that is leaf-LRU, exactly."""

from __future__ import annotations

from stepwell.cache.recency import Recency
from stepwell.offers import Context, NoConfig


class Lru(Recency):
    """Evicts what was used longest ago."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        super().__init__()
