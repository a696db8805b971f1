"""What core's own storages tell of themselves besides what the guard in front of them counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Counting(Protocol):
    """A storage that counts. Asked by the serving thread, so the answer must be at hand."""

    def values(self) -> Mapping[str, float]:
        """Counters and gauges by name, for metrics."""
