"""The plugin that offers dispatch over symmetric memory: `symm` and `symm-low-latency`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stepwell import Capability, Check, Context, Dispatcher, Offer, hookimpl
from stepwell_symm.config import SymmConfig, SymmLowConfig
from stepwell_symm.machine import finding, missing

if TYPE_CHECKING:
    import torch

START_S = 120.0
"""Seconds that ranks may take to meet."""


def make(config: SymmConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """For large batches, on this rank's device."""
    import torch

    from stepwell_symm.lane import CudaLane
    from stepwell_symm.normal import Symm
    from stepwell_symm.shared import share

    lane = CudaLane(torch.device(context.device))
    return Symm(config, context.rank, context.world, lane, partial(share, context, "symm", START_S))


def make_low(config: SymmLowConfig, context: Context) -> Dispatcher[torch.Tensor]:
    """For small batches, on this rank's device."""
    import torch

    from stepwell_symm.lane import CudaLane
    from stepwell_symm.low import SymmLow
    from stepwell_symm.shared import share

    lane = CudaLane(torch.device(context.device))
    return SymmLow(config, context.rank, context.world, lane, partial(share, context, "symm-low", START_S))


@hookimpl
def stepwell_dispatchers() -> list[Offer[Dispatcher[torch.Tensor]]]:
    """Two modes, two offers."""
    return [
        Offer("symm", make, SymmConfig, missing),
        Offer("symm-low-latency", make_low, SymmLowConfig, missing, frozenset({Capability.GRAPH_SAFE})),
    ]


@hookimpl
def stepwell_checks() -> list[Check]:
    """Whether the devices of this machine reach each other."""
    return [Check("peers", finding)]
