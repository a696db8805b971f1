"""What core's own storages, and runners, tell of themselves besides what core counts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Counting(Protocol):
    """A piece that counts. Asked by the serving thread, so the answer must be at hand."""

    def values(self) -> Mapping[str, float]:
        """Counters and gauges by name, for metrics."""


UNCOUNTED = {"values_failed": 1.0}
"""What a piece counts that cannot say it: numbers are no reason for an end."""


def counted(piece: object) -> dict[str, float]:
    """What a piece counts; nothing where it does not count. Raises nothing."""
    try:
        told = piece.values() if isinstance(piece, Counting) else {}
        return {str(name): float(value) for name, value in told.items()}
    except Exception:
        return dict(UNCOUNTED)
