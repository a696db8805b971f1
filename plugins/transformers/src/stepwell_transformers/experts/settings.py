"""The `[runner.experts]` table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsSettings:
    """How routed experts are kept."""

    spare: int = 0
    """Slots for a second and further replica of experts, over all ranks, beside one slot for each expert."""

    def __post_init__(self) -> None:
        if self.spare < 0:
            raise ValueError(f"spare: {self.spare} is less than 0")
