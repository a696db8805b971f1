"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["IntraNode", "IntraNodeLL", "InterNodeV1", "InterNodeV1LL", "AsyncLL"]


@dataclass(frozen=True, slots=True)
class MoriConfig:
    """The `[runner.dispatch]` table when `use = "mori"`."""

    kernel: Kernel = "IntraNode"
    """Which of the library's: within a node, or between nodes; LL: for few tokens; AsyncLL sends and receives apart."""
    blocks: int = 80
    """Blocks that its kernels take."""
    warps: int = 8
    """Warps of a block."""
    gpus_per_node: int = 8
    """GPUs of a node."""
    timeout_s: float = 60.0
    """How long ranks wait for each other when they meet. Later the library waits for ever."""

    def __post_init__(self) -> None:
        for name in ("blocks", "warps", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 1")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s: {self.timeout_s:g} is not more than 0")
