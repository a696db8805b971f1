"""Replicas for the hottest experts, and packs of even weight: the two greedy steps, over all layers at once.

Both decide as the published algorithm does, in its single precision, so that they decide alike where it matters by a
hair. Quotients and sums are IEEE's, one element at a time, and the first of equals wins: the same on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


def replicate_experts(weight: npt.ArrayLike, num_phy: int, most: Ints | None = None) -> tuple[Ints, Ints, Ints]:
    """Give one replica after the other to the expert with the most load a replica; none gets more than `most`.

    `weight` and `most` are [layers, experts]. Answers the expert of each slot [layers, num_phy], which replica of it
    that is, and how many replicas each expert has [layers, experts].
    """
    weights = np.ascontiguousarray(weight, dtype=np.float32)
    layers, experts = weights.shape
    rows = np.arange(layers)
    share = weights.copy() if most is None else np.where(most > 1, weights, np.float32(-1))
    count = np.ones((layers, experts), dtype=np.int64)
    expert = np.empty((layers, num_phy), dtype=np.int64)
    nth = np.zeros((layers, num_phy), dtype=np.int64)
    expert[:, :experts] = np.arange(experts)
    for slot in range(experts, num_phy):
        hottest = share.argmax(axis=1)
        had = count[rows, hottest]
        expert[:, slot], nth[:, slot] = hottest, had
        count[rows, hottest] = had + 1
        share[rows, hottest] = weights[rows, hottest] / (had + 1).astype(np.float32)
        if most is not None:
            share[rows, hottest] = np.where(had + 1 < most[rows, hottest], share[rows, hottest], np.float32(-1))
    return expert, nth, count


def balanced_packing(weight: npt.ArrayLike, num_packs: int) -> tuple[Ints, Ints]:
    """Put the heaviest item left into the lightest pack that has room, until each has as many as any other.

    `weight` [layers, items]; items are a multiple of packs. Answers each item's pack and its place there.
    """
    weights = np.ascontiguousarray(weight, dtype=np.float32)
    items = weights.shape[1]
    room = items // num_packs
    if room == 1:
        return np.broadcast_to(np.arange(items), weights.shape).copy(), np.zeros(weights.shape, dtype=np.int64)
    # Of numbers that are not negative, the bits are in the order of the numbers.
    order = ordered(np.iinfo(np.int32).max - weights.view(np.int32).astype(np.int64))
    falling = np.ascontiguousarray(np.take_along_axis(weights, order, axis=1).T)
    packs = np.ascontiguousarray(_pack(falling, num_packs, room).T)
    pack, place = np.empty_like(order), np.empty_like(order)
    np.put_along_axis(pack, order, packs, axis=1)
    np.put_along_axis(place, order, _places(packs, room), axis=1)
    return pack, place


def _pack(falling: Weights, num_packs: int, room: int) -> Ints:
    """Packs of items [items, layers] that come heaviest first."""
    items, layers = falling.shape
    packs = np.empty((items, layers), dtype=np.int64)
    # The first items find all packs empty: one goes into each.
    packs[:num_packs] = np.arange(num_packs)[:, None]
    lightest = np.ascontiguousarray(falling[:num_packs].T)
    flat, base = lightest.reshape(-1), np.arange(layers) * num_packs
    count = np.ones(layers * num_packs, dtype=np.int64)
    full = np.zeros(room + 1, dtype=np.float32)
    full[room] = np.inf
    for item in range(num_packs, items):
        at = base + lightest.argmin(1, packs[item])
        now = count.take(at) + 1
        count[at] = now
        flat[at] = flat.take(at) + falling[item] + full.take(now)
    return packs


def _places(packs: Ints, room: int) -> Ints:
    """How many earlier items of [layers, items] are in the same pack; each pack has `room` items."""
    order = ordered(packs)
    places = np.empty_like(packs)
    np.put_along_axis(places, order, np.broadcast_to(np.arange(packs.shape[1]) % room, packs.shape), axis=1)
    return places


def ordered(keys: Ints) -> Ints:
    """Where the keys of each row are in rising order, the first of equals first. Keys are below two to the 31.

    Whole words that have key and place are all different, so the fastest way to sort them will do.
    """
    words = (keys << 32) | np.arange(keys.shape[1])
    words.sort(axis=1)
    return words & 0xFFFFFFFF
