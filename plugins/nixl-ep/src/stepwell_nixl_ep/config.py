"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepwell_kernels.dispatch.fit import MOST


@dataclass(frozen=True, slots=True)
class NixlEPConfig:
    """The `[runner.dispatch]` table when `use = "nixl-ep"`."""

    capacity: int = 128
    """Most tokens of a rank in one dispatch; memory grows with it."""
    tokens: Literal["bfloat16", "float8"] = "bfloat16"
    """How tokens travel to experts; outputs travel back as bfloat16."""
    timeout_s: float = 30.0
    """How long ranks wait for each other, when they meet and in every exchange."""

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= MOST:
            raise ValueError(f"capacity: {self.capacity} is not between 1 and {MOST}, the most that its kernels count")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s: {self.timeout_s:g} is not more than 0")
