"""What can be said against a placement; empty where nothing can."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell_testkit.balance.scenes import Scene

Slots = npt.NDArray[Any]


def wrong(asked: Scene, placed: Slots) -> str:
    """Its shape, and whether every expert stands somewhere."""
    right = (len(asked.load), asked.topology.slots)
    if placed.shape != right:
        return f"a placement of {placed.shape} for {right}"
    if placed.size and not 0 <= placed.min() <= placed.max() < asked.experts:
        return f"experts {placed.min()} to {placed.max()} of {asked.experts}"
    for layer, slots in enumerate(placed):
        missing = sorted(set(range(asked.experts)) - set(slots.tolist()))
        if missing:
            return f"layer {layer} has no place for {missing}"
    return ""


def repeats(asked: Scene, placed: Slots) -> str:
    """Whether a rank has an expert twice that has no more replicas than there are ranks."""
    for layer, slots in enumerate(placed):
        replicas = np.bincount(slots, minlength=asked.experts)
        for rank, own in enumerate(_by_rank(asked, slots)):
            here = np.bincount(own, minlength=asked.experts)
            for expert in np.flatnonzero((here > 1) & (replicas <= asked.topology.ranks)).tolist():
                return (
                    f"layer {layer}: rank {rank} has expert {expert} {here[expert]} times,"
                    f" of {replicas[expert]} replicas on {asked.topology.ranks} ranks"
                )
    return ""


def kept(asked: Scene, placed: Slots) -> str:
    """Whether something stays on a rank and moves within it all the same."""
    assert asked.current is not None
    for layer, (before, after) in enumerate(zip(asked.current.experts, placed, strict=True)):
        for rank, (old, new) in enumerate(zip(_by_rank(asked, before), _by_rank(asked, after), strict=True)):
            stays = np.minimum(*(np.bincount(side, minlength=asked.experts) for side in (old, new)))
            still = np.bincount(old[old == new], minlength=asked.experts)
            for expert in np.flatnonzero(still < stays).tolist():
                return f"layer {layer}: expert {expert} changes its slot on rank {rank}: {old} became {new}"
    return ""


def split(asked: Scene, placed: Slots) -> str:
    """Whether a group of experts stands on more than one node."""
    topology = asked.topology
    node = np.arange(topology.slots) // (topology.slots // topology.nodes)
    for layer, slots in enumerate(placed):
        group = slots // (asked.experts // topology.groups)
        for number in range(topology.groups):
            nodes = sorted(set(node[group == number].tolist()))
            if len(nodes) > 1:
                return f"layer {layer}: group {number} stands on nodes {nodes}"
    return ""


def worst(asked: Scene, placed: Slots) -> npt.NDArray[np.float64]:
    """For each layer, the tokens of the fullest rank, each expert's spread evenly over its replicas."""
    full = []
    for load, slots in zip(asked.load, placed, strict=True):
        share = load / np.maximum(np.bincount(slots, minlength=asked.experts), 1)
        full.append(_by_rank(asked, share[slots]).sum(axis=1).max())
    return np.array(full)


def _by_rank(asked: Scene, slots: Slots) -> Slots:
    return slots.reshape(asked.topology.ranks, -1)
