"""How many replicas so many requests want."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def wanted(ongoing: Sequence[float], target: float, now: int) -> int:
    """Replicas for what each reports to be under way; unchanged while nobody has reported yet."""
    return max(1, ceil(sum(ongoing) / target)) if ongoing else now
