"""What stays where it is: in its slot where it stays on its rank, and all of a layer that would not be better."""

from __future__ import annotations

import numpy as np

from stepwell_eplb.greedy import Ints
from stepwell_eplb.relief import Bools
from stepwell_eplb.rows import Rows
from stepwell_eplb.swaps import part_twins, second


def settled(experts: Ints, current: Ints) -> Ints:
    """`experts` [layers, ranks, slots of a rank] with each rank's in an order that moves as few as possible."""
    ours, theirs = experts, current
    if second(experts).any() or second(current).any():
        ours, theirs = _told_apart(experts), _told_apart(current)
    same = ours[..., :, None] == theirs[..., None, :]
    stays, kept = same.any(axis=-1), same.any(axis=-2)
    settled = np.where(kept, current, -1)
    # Each rank has as many that come as it has free slots, so both run through the ranks alike.
    settled[~kept] = experts[~stays]
    return settled


def _told_apart(experts: Ints) -> Ints:
    """Numbers of experts, other ones for second and further replicas on a rank."""
    slots = experts.shape[-1]
    same = experts[..., :, None] == experts[..., None, :]
    return experts * slots + (same & np.tri(slots, k=-1, dtype=np.bool_)).sum(axis=-1)


def in_groups(now: Ints, experts: int, nodes: int, groups: int) -> Bools:
    """[layers]: whether each group of experts is on one node, and equally many are on each."""
    here = np.zeros((len(now), nodes, experts), dtype=np.bool_)
    np.put_along_axis(here, now.reshape(len(now), nodes, -1), values=True, axis=2)
    alone = here.reshape(len(now), nodes, groups, -1).any(axis=3).sum(axis=1) == 1
    return alone.all(axis=1) & (here.sum(axis=2) == experts // nodes).all(axis=1)


def needless_twins(rows: Rows) -> Bools:
    """[rows]: whether a rank has an expert twice that some rank lacks."""
    if not second(rows.experts).any():
        return np.zeros(len(rows.experts), dtype=np.bool_)
    parted = rows.taken(np.arange(len(rows.experts)))
    part_twins(parted)
    return (parted.experts != rows.experts).any(axis=(1, 2))
