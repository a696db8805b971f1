"""The interface of the published balancer, DeepSeek's EPLB: plain functions on arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell_eplb.check import check_load, check_shape
from stepwell_eplb.greedy import Ints, balanced_packing, replicate_experts
from stepwell_eplb.rows import counts
from stepwell_eplb.solve import Shape, solve

__all__ = ["balanced_packing", "rebalance_experts", "replicate_experts"]


def rebalance_experts(
    weight: npt.ArrayLike, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> tuple[Ints, Ints, Ints]:
    """Place replicas of `weight` [layers, experts], whole numbers, on devices that have equally many slots.

    Answers the expert of each slot [layers, replicas]; the slots of each expert [layers, experts, most], -1 behind
    them; and how many it has [layers, experts]. Where groups divide over nodes, all of an expert's replicas are on one
    node. No device has more to do than the published algorithm gives its hottest one, and none has an expert twice but
    where that could not be kept otherwise. ConfigError for numbers that do not fit each other.
    """
    load = check_load(np.asarray(weight))
    check_shape(load.shape[1], num_replicas, num_gpus, num_nodes, num_groups)
    apart = num_groups % num_nodes == 0
    shape = Shape(num_replicas, num_gpus, num_nodes, num_groups) if apart else Shape(num_replicas, num_gpus)
    experts = solve(load, shape, twins=True).reshape(len(load), -1)
    count = counts(experts, load.shape[1])
    return experts, slots_of(experts, count), count


def slots_of(experts: Ints, count: Ints) -> Ints:
    """[layers, experts, most]: the slots of each expert in order, -1 behind them."""
    order = np.argsort(experts, axis=1, kind="stable")
    sorted_experts = np.take_along_axis(experts, order, axis=1)
    first = np.cumsum(count, axis=1) - count
    nth = np.arange(experts.shape[1]) - np.take_along_axis(first, sorted_experts, axis=1)
    found = np.full((*count.shape, int(count.max(initial=1))), -1, dtype=np.int64)
    found[np.arange(len(experts))[:, None], sorted_experts, nth] = order
    return found
