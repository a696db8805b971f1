"""Which group a rank gets: none for one rank, else the fastest that its device has."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from stepwell_kernels.collective.group import Group, Solo
from stepwell_kernels.collective.torch_group import TorchGroup


def join(
    meet: str,
    rank: int,
    world: int,
    device: torch.device | str,
    timeout_s: float,
    *,
    one_shot: bool = True,
    log: logging.Logger | None = None,
    name: str = "",
) -> Group:
    """See TorchGroup.join; one rank meets nobody. `one_shot`: small sums between CUDA devices in one kernel."""
    if world == 1:
        return Solo()
    group = TorchGroup.join(meet, rank, world, device, timeout_s, name)
    if group.device.type != "cuda" or not one_shot or find_spec("triton") is None:
        return group
    from stepwell_kernels.collective.symmetric import SymmetricGroup

    return SymmetricGroup.over(group, log or logging.getLogger("stepwell.kernels"))
