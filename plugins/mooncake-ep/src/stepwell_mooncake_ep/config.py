"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepwell_kernels.dispatch.fit import MOST

LONGEST_S = 2000.0
"""The library counts microseconds in 32 bits."""


@dataclass(frozen=True, slots=True)
class MooncakeEPConfig:
    """The `[runner.dispatch]` table when `use = "mooncake-ep"`."""

    capacity: int = 128
    """Most tokens of a rank in one dispatch; memory grows with it."""
    tokens: Literal["bfloat16", "float8"] = "bfloat16"
    """How tokens travel to experts; outputs travel back as bfloat16."""
    timeout_s: float = 30.0
    """How long ranks wait for each other, when they meet and in every exchange."""

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MOST:
            raise ValueError(f"capacity: {self.capacity} is not between 1 and {MOST}, the most that its kernels count")
        if not 0 < self.timeout_s <= LONGEST_S:
            raise ValueError(f"timeout_s: {self.timeout_s:g} is not between 0 and {LONGEST_S:g}")
