"""The published algorithm, step by step in plain loops: what speed and quality are held against.

Written from its description, in single precision as it is there. The first of equals is taken everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


def replicate(weight: Weights, slots: int) -> tuple[Ints, Ints]:
    """The expert of each slot [layers, slots], and the replicas of each expert [layers, experts]."""
    layers, experts = weight.shape
    expert = np.tile(np.arange(slots), (layers, 1))
    count = np.ones((layers, experts), dtype=np.int64)
    for slot in range(experts, slots):
        hottest = (weight / count.astype(np.float32)).argmax(axis=1)
        expert[:, slot] = hottest
        count[np.arange(layers), hottest] += 1
    return expert, count


def pack(weight: Weights, packs: int) -> tuple[Ints, Ints]:
    """The pack of each item of [layers, items], and its place there: heaviest first, into the lightest with room."""
    layers, items = weight.shape
    room = items // packs
    found, place = np.tile(np.arange(items), (layers, 1)), np.zeros((layers, items), dtype=np.int64)
    if room == 1:
        return found, place
    for layer in range(layers):
        filled, sums = [0] * packs, [np.float32(0)] * packs
        for item in np.argsort(-weight[layer], kind="stable"):
            lightest = min((one for one in range(packs) if filled[one] < room), key=sums.__getitem__)
            found[layer, item], place[layer, item] = lightest, filled[lightest]
            filled[lightest] += 1
            sums[lightest] += weight[layer, item]
    return found, place


def rebalance(load: Ints, slots: int, groups: int, nodes: int, ranks: int) -> Ints:
    """The expert of each slot [layers, slots]."""
    if groups % nodes:
        groups = nodes = 1
    layers, experts = load.shape
    weight, size = load.astype(np.float32), experts // groups
    node, place = pack(weight.reshape(layers, groups, size).sum(axis=2), nodes)
    group = np.empty_like(node)
    np.put_along_axis(group, node * (groups // nodes) + place, np.arange(groups)[None], axis=1)
    members = (group[:, :, None] * size + np.arange(size)).reshape(layers * nodes, -1)
    weight = np.take_along_axis(weight.repeat(nodes, axis=0), members, axis=1)
    expert, count = replicate(weight, slots // nodes)
    share = np.take_along_axis(weight / count.astype(np.float32), expert, axis=1)
    rank, place = pack(share, ranks // nodes)
    placed = np.empty_like(expert)
    np.put_along_axis(placed, rank * (slots // ranks) + place, np.take_along_axis(members, expert, axis=1), axis=1)
    return placed.reshape(layers, slots)
