"""Where the dispatchers of a model's experts meet: among all ranks that have some of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import torch

from stepwell import ConfigError, Context


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
        """The ranks of a tensor-parallel group; where those are one each, the groups that compute together.

        On the device that the model is on.
        """
        ranks = context.rank, context.world, context.meet
        if together(context):
            if urlparse(context.commons).scheme != "file":
                raise ConfigError(
                    "runner.dispatch: experts of several groups (ranks.dp) need a place where the groups meet, which "
                    "`stepwell serve` gives them; set ranks.dp = 1"
                )
            ranks = context.group, context.groups, context.commons
        return cls(*ranks, str(device), context.clock, context.log, context.state_dir)


def together(context: Context) -> bool:
    """Whether several groups share the experts of one model."""
    return context.world == 1 and context.groups > 1
