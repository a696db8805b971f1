"""Where the dispatchers of a model's experts meet: among all ranks that have some of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from stepwell import Context


@dataclass(frozen=True, slots=True)
class ExpertPlace:
    """A Context whose ranks are those of the expert group."""

    rank: int
    world: int
    meet: str
    device: str
    clock: Callable[[], float]
    log: logging.Logger
    state_dir: Path
    group: int = 0
    groups: int = 1
    commons: str = ""

    @classmethod
    def of(cls, context: Context, device: torch.device) -> ExpertPlace:
        """The ranks of a tensor-parallel group, on the device that the model is on."""
        about = context.clock, context.log, context.state_dir
        return cls(context.rank, context.world, context.meet, str(device), *about)
