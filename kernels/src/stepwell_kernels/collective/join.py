"""Which group a rank gets: none for one rank, else the fastest that its device has."""

from __future__ import annotations

import torch

from stepwell_kernels.collective.group import Group, Solo
from stepwell_kernels.collective.torch_group import TorchGroup


def join(meet: str, rank: int, world: int, device: torch.device | str, timeout_s: float) -> Group:
    """See TorchGroup.join; one rank meets nobody."""
    if world == 1:
        return Solo()
    return TorchGroup.join(meet, rank, world, device, timeout_s)
