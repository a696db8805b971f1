"""A rebalancing as a config asks for it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch

from stepwell import Balancer, Part, Topology
from stepwell_kernels.collective import TorchGroup
from stepwell_transformers.balance import Recorder, Trigger
from stepwell_transformers.rebalance.planner import Planner
from stepwell_transformers.rebalance.rebalancing import Rebalancing
from stepwell_transformers.rebalance.stages import Beside, at_once

if TYPE_CHECKING:
    from stepwell_transformers.experts.experts import Experts
    from stepwell_transformers.experts.place import ExpertPlace
    from stepwell_transformers.experts.settings import ExpertsSettings

VOTES_S, CARRIED_S = 60.0, 120.0
"""Longer than a rank is behind another at a vote, and than a batch of weights takes to come."""


def rebalancing_of(
    balancer: Part[Balancer],
    settings: ExpertsSettings,
    experts: Experts,
    place: ExpertPlace,
    router_groups: int,
    log: logging.Logger,
    *,
    sums: bool,
    beside: Beside = at_once,
) -> Rebalancing:
    """Meets the other ranks. `router_groups`: those that the model's router chooses between first, or 1.

    `sums`: ranks have different tokens.
    """
    groups = router_groups if experts.experts % router_groups == 0 else 1
    topology = Topology(ranks=place.world, slots_per_rank=experts.local, groups=groups)
    recorder = Recorder(len(experts.layers), experts.experts, settings.half_life)
    planner = Planner(balancer.make(place), topology, recorder, Trigger(settings.trigger), settings.layers)
    with ExitStack() as undo:
        met = []
        for name, patience_s in (("votes", VOTES_S), ("experts", CARRIED_S)):
            met.append(TorchGroup.join(place.meet, place.rank, place.world, "cpu", patience_s, name=name))
            undo.callback(met[-1].close)
        votes, carrier = met
        undo.pop_all()
    return Rebalancing(experts, planner, settings, votes, carrier, log, sums=sums, beside=beside)


def beside_on_cuda(device: torch.device, compute: Any) -> Beside:
    """Copies on a stream of their own, behind what `compute` has been given so far."""
    side = torch.cuda.Stream(device)

    class Side(ExitStack):
        def __enter__(self) -> Side:
            super().__enter__()
            side.wait_stream(compute)
            self.callback(side.synchronize)
            self.enter_context(torch.cuda.stream(side))
            return self

    def begin() -> AbstractContextManager[object]:
        return Side()

    return begin
