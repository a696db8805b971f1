"""The settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class FlashInferConfig:
    """The `[runner.attention]` table when `use = "flashinfer"`."""

    backend: Literal["auto", "fa2", "fa3"] = "auto"
    """The library's kernels for prompts; auto: its own choice, fa3 on Hopper."""
    tensor_cores: Literal["auto", "on", "off"] = "auto"
    """Whether decodes multiply on tensor cores; auto: where four heads or more share keys."""
    workspace_mib: int = 128
    """Device memory for the parts of long histories before they are merged."""

    def __post_init__(self) -> None:
        if self.workspace_mib < 1:
            raise ValueError(f"workspace_mib: {self.workspace_mib} is less than 1")
