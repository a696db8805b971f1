"""Everything anew, for what ranks have had to do: `use = "deepseek"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stepwell import Balancer, ConfigError, Context, ExpertLoad, Placement, Topology
from stepwell_eplb.check import check_current, check_load, check_topology
from stepwell_eplb.greedy import Ints
from stepwell_eplb.rows import Rows, units_of
from stepwell_eplb.solve import Shape, solve
from stepwell_eplb.stay import in_groups, needless_twins, settled

Mode = Literal["auto", "hierarchical", "global"]


@dataclass(frozen=True, slots=True)
class DeepseekConfig:
    """The settings of a balancer that places all experts anew."""

    mode: Mode = "auto"
    """hierarchical: the groups of experts are dealt to nodes, whole; global: any expert to any rank; auto: hierarchical
    where groups divide over nodes."""


class Deepseek(Balancer):
    """Replicas for the hottest experts, the heaviest to the rank with least, then trades."""

    def __init__(self, config: DeepseekConfig, context: Context) -> None:
        self._mode = config.mode

    def place(self, load: ExpertLoad, topology: Topology, current: Placement | None) -> Placement:
        load = check_load(load)
        check_topology(load.shape[1], topology)
        shape = shape_of(topology, self._mode)
        experts = solve(load, shape)
        if current is not None:
            now = check_current(current, *load.shape, topology.slots).reshape(experts.shape)
            experts = _worthwhile(load, shape, now, experts)
        return Placement(np.ascontiguousarray(experts.reshape(len(load), -1), dtype=np.int32))


def shape_of(topology: Topology, mode: Mode) -> Shape:
    """What is placed on what; ConfigError where groups are to be dealt to nodes and do not divide."""
    divides = topology.groups % topology.nodes == 0
    if mode == "hierarchical" and not divides:
        raise ConfigError(
            f"mode = 'hierarchical': {topology.groups} groups do not divide over {topology.nodes} nodes; use 'global'"
        )
    if mode == "global" or not divides:
        return Shape(topology.slots, topology.ranks)
    return Shape(topology.slots, topology.ranks, topology.nodes, topology.groups)


def _worthwhile(load: Ints, shape: Shape, now: Ints, experts: Ints) -> Ints:
    """Layers that are better than they are now, with what stays in its slot; the others as they are."""
    units = units_of(load)
    rows = Rows.of(now, units)
    stays = (rows.worst <= Rows.of(experts, units).worst) & ~needless_twins(rows)
    if shape.nodes > 1:
        stays &= in_groups(now, load.shape[1], shape.nodes, shape.groups)
    return np.where(stays[:, None, None], now, settled(experts, now))
