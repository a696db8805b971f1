"""Place all experts anew: replicas, packs, then trades, until no rank is hotter than the published algorithm's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell_eplb.greedy import Ints, balanced_packing, replicate_experts
from stepwell_eplb.relief import Held, relieve
from stepwell_eplb.rows import Rows, own_units_of
from stepwell_eplb.swaps import part_twins, polish

ENOUGH = 200
"""A row is even enough when its hottest rank is above the mean by one part in so many."""
ROUNDS, PARTNERS = 4, 2
"""Trades of a row that is packed well already, and the cold ranks that are asked: what few milliseconds allow."""
AGAIN = 3
STUBBORN_ROUNDS = 64
"""Of a row that lost by not having an expert twice on a rank; there are few."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is placed on what."""

    slots: int
    ranks: int
    nodes: int = 1
    """A divisor of groups: those are dealt to nodes first, whole, and all replicas of an expert stay on its node."""
    groups: int = 1


def solve(load: Ints, shape: Shape, *, twins: bool = False) -> Ints:
    """The experts of each rank [layers, ranks, slots of a rank] for `load` [layers, experts].

    `twins`: an expert may stand twice on a rank where a rank would be hotter otherwise than the published algorithm,
    which allows that, leaves it.
    """
    members = _deal(load, shape)
    units = np.take_along_axis(own_units_of(load).repeat(shape.nodes, axis=0), members, axis=1)
    tokens = np.take_along_axis(load.repeat(shape.nodes, axis=0), members, axis=1)
    placed = solve_rows(tokens, units, shape.slots // shape.nodes, shape.ranks // shape.nodes, twins=twins)
    experts = np.take_along_axis(members, placed.reshape(len(members), -1), axis=1)
    return experts.reshape(len(load), shape.ranks, -1)


def solve_rows(tokens: Ints, units: Ints, slots: int, ranks: int, *, twins: bool = False) -> Ints:
    """The same for rows that have nothing to do with each other: [rows, ranks, slots of a rank]."""
    seed = greedy(tokens, slots, ranks)
    rows = Rows.of(seed.copy(), units)
    bound = rows.worst
    crowded = np.flatnonzero((rows.count > ranks).any(axis=1))
    if len(crowded) and tokens.shape[1] * ranks >= slots:
        most = np.full((len(crowded), tokens.shape[1]), ranks)
        rows.put(crowded, Rows.of(greedy(tokens[crowded], slots, ranks, most), units[crowded]))
    part_twins(rows)
    polish(rows, np.minimum(bound, rows.mean + rows.mean // ENOUGH), ROUNDS, PARTNERS)
    hotter = np.flatnonzero(rows.worst > bound)
    if len(hotter):
        _insist(rows, hotter, bound, tokens, seed.copy())
    if twins:
        hotter = np.flatnonzero(rows.worst > bound)
        rows.experts[hotter] = seed[hotter]
    return rows.experts


def greedy(tokens: Ints, slots: int, ranks: int, most: Ints | None = None) -> Ints:
    """What the published algorithm answers for one node: [rows, ranks, slots of a rank]. `most`: replicas of each."""
    expert, _, count = replicate_experts(tokens, slots, most)
    share = tokens.astype(np.float32) / count.astype(np.float32)
    pack, place = balanced_packing(np.take_along_axis(share, expert, axis=1), ranks)
    placed = np.empty_like(expert)
    np.put_along_axis(placed, pack * (slots // ranks) + place, expert, axis=1)
    return placed.reshape(len(tokens), ranks, slots // ranks)


def _deal(load: Ints, shape: Shape) -> Ints:
    """[layers x nodes, experts of a node]: heavy groups first, each to the node that has least."""
    layers, experts = load.shape
    if shape.groups == 1:
        return np.broadcast_to(np.arange(experts), load.shape)
    size = experts // shape.groups
    node, place = balanced_packing(load.reshape(layers, shape.groups, size).sum(axis=2), shape.nodes)
    group = np.empty_like(node)
    np.put_along_axis(group, node * (shape.groups // shape.nodes) + place, np.arange(shape.groups)[None], axis=1)
    return (group[:, :, None] * size + np.arange(size)).reshape(layers * shape.nodes, -1)


def _insist(rows: Rows, which: Ints, bound: Ints, tokens: Ints, seed: Ints) -> None:
    """Get rows down to their bound by trades with every rank, and by giving replicas to other experts.

    What does not come down that way is packed anew, without the replicas that `seed` had beside another on one rank.
    """
    some, goal = rows.taken(which), bound[which]
    _strive(some, goal)
    most = np.full_like(tokens, seed.shape[1])
    for _ in range(AGAIN):
        left = np.flatnonzero(some.worst > goal)
        last = Held.over(Rows.of(seed[which[left]], some.units[left]))
        apart = last.held.sum(axis=1)
        most[which[left]] = np.where(last.count > apart, apart, most[which[left]])
        left = left[most[which[left]].sum(axis=1) >= seed[0].size]
        if not len(left):
            break
        at = which[left]
        seed[at] = greedy(tokens[at], seed[0].size, seed.shape[1], most[at])
        again = Rows.of(seed[at], some.units[left])
        part_twins(again)
        _strive(again, goal[left])
        better = np.flatnonzero(again.worst < some.worst[left])
        some.put(left[better], again.taken(better))
    better = np.flatnonzero(some.worst < rows.worst[which])
    rows.put(which[better], some.taken(better))


def _strive(rows: Rows, goal: Ints) -> None:
    """Every trade that helps, then moves of replicas."""
    polish(rows, goal, STUBBORN_ROUNDS, rows.loads.shape[1])
    left = np.flatnonzero(rows.worst > goal)
    trial = Held.over(rows).kept(left)
    for _ in range(STUBBORN_ROUNDS):
        if not len(left):
            break
        moved = relieve(trial, goal[left]).gain > 0
        better = np.flatnonzero(trial.worst < rows.worst[left])
        rows.put(left[better], trial.taken(better))
        on = np.flatnonzero(moved & (trial.worst > goal[left]))
        left, trial = left[on], trial.kept(on)
    part_twins(rows)  # An expert that gave replicas away may have no reason any more to stand twice on a rank.
