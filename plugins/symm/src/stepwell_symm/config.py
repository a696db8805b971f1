"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SymmConfig:
    """The `[runner.dispatch]` table when `use = "symm"`."""

    dtype: Literal["same", "fp8"] = "same"
    """How tokens travel: as they are, or as 8-bit floats with a scale for each 128 numbers. Sums always as they are."""
    in_flight: int = 2
    """Batches that may be under way at once. Each has memory of its own; two-batch overlap needs 2."""
    programs: int = 128
    """Blocks of threads that copy: more finish sooner, fewer leave more of the device to what runs meanwhile."""
    timeout_s: float = 20.0
    """Seconds to wait for another rank before it counts as lost."""

    def __post_init__(self) -> None:
        _check(self.in_flight, self.timeout_s)
        if not 1 <= self.programs <= 512:
            raise ValueError(f"programs: {self.programs} is not from 1 to 512")


@dataclass(frozen=True, slots=True)
class SymmLowConfig:
    """The `[runner.dispatch]` table when `use = "symm-low-latency"`."""

    dtype: Literal["same", "fp8"] = "same"
    """As of `symm`."""
    capacity: int = 128
    """Most tokens that a rank may bring. Memory grows with experts here times ranks times this."""
    in_flight: int = 2
    """As of `symm`."""
    timeout_s: float = 20.0
    """As of `symm`."""

    def __post_init__(self) -> None:
        _check(self.in_flight, self.timeout_s)
        if not 1 <= self.capacity <= 1024:
            raise ValueError(f"capacity: {self.capacity} is not from 1 to 1024; symm takes larger batches")


def _check(in_flight: int, timeout_s: float) -> None:
    if in_flight not in (1, 2):
        raise ValueError(f"in_flight: {in_flight} is neither 1 nor 2")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s: {timeout_s} is not above 0")
