"""From where experts stand now, the moves that help most: `use = "incremental"`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepwell import Balancer, ConfigError, Context, ExpertLoad, Placement, Topology
from stepwell_eplb.check import check_current, check_load, check_topology
from stepwell_eplb.deepseek import Mode, shape_of
from stepwell_eplb.greedy import Ints
from stepwell_eplb.path import Point, paths
from stepwell_eplb.rows import Rows, units_of
from stepwell_eplb.solve import Shape, solve, solve_rows
from stepwell_eplb.spend import Stop, spend
from stepwell_eplb.stay import in_groups, needless_twins, settled
from stepwell_eplb.swaps import part_twins, second


@dataclass(frozen=True, slots=True)
class IncrementalConfig:
    """The settings of a balancer that moves few experts."""

    budget: float = 0.07
    """How many experts may move: up to 1 a share of all slots of all layers, above 1 a number of slots."""
    target: float = 1.05
    """A layer is left alone when its hottest rank has at most so many times what ranks have on average."""
    mode: Mode = "auto"
    """As for `deepseek`; hierarchical: experts move within their node, if each group is on one."""


class Incremental(Balancer):
    """Trades, further replicas and replicas given up, where the hottest ranks gain most for each expert that moves."""

    def __init__(self, config: IncrementalConfig, context: Context) -> None:
        if not 0 < config.budget < math.inf:
            raise ConfigError(f"budget = {config.budget}: give a share of all slots, up to 1, or a number of slots")
        if not 1 <= config.target < math.inf:
            raise ConfigError(f"target = {config.target}: no rank can have less than the average; give 1 or more")
        self._config = config

    def place(self, load: ExpertLoad, topology: Topology, current: Placement | None) -> Placement:
        load = check_load(load)
        check_topology(load.shape[1], topology)
        shape = shape_of(topology, self._config.mode)
        if current is None:
            experts = solve(load, shape)
        else:
            now = check_current(current, *load.shape, topology.slots)
            experts = self._improve(load, shape, now.reshape(len(load), topology.ranks, -1))
        return Placement(np.ascontiguousarray(experts.reshape(len(load), -1), dtype=np.int32))

    def _improve(self, load: Ints, shape: Shape, now: Ints) -> Ints:
        grouped = shape.nodes > 1 and in_groups(now, load.shape[1], shape.nodes, shape.groups).all()
        nodes = shape.nodes if grouped else 1
        units = units_of(load)
        rows = Rows.of(now.reshape(len(now) * nodes, shape.ranks // nodes, -1), units.repeat(nodes, axis=0))
        # A node that has more to do than the others can be even at best; one that has less need not be.
        mean = np.maximum(rows.mean, -(-units.sum(axis=1) // shape.ranks).repeat(nodes))
        goal = (mean * self._config.target).astype(np.int64)
        budget = self._moves(now.size)
        points = paths(rows, goal, min(budget, rows.experts[0].size))
        short = short_of(goal, rows, points)
        if len(short):
            points.append(anew(load.repeat(nodes, axis=0), rows, short))
        # What left a rank and came back is back in its slot.
        return settled(apart(chosen(rows, points, budget), rows), rows.experts).reshape(now.shape)

    def _moves(self, slots: int) -> int:
        budget = self._config.budget
        return int(budget * slots) if budget <= 1 else int(budget)


def short_of(goal: Ints, rows: Rows, points: list[Point]) -> Ints:
    """The rows that no path takes to their goal."""
    best = rows.worst
    for point in points:
        best[point.rows] = point.worst
    return np.flatnonzero(best > goal)


def anew(tokens: Ints, rows: Rows, which: Ints) -> Point:
    """Some rows placed from scratch: much dearer than any path, but there may be budget for it."""
    some = rows.taken(which)
    members = np.nonzero(some.count)[1].reshape(len(which), -1)
    own = (np.take_along_axis(numbers, members, axis=1) for numbers in (tokens[which], some.units))
    _, ranks, slots = rows.experts.shape
    placed = solve_rows(*own, ranks * slots, ranks).reshape(len(which), ranks * slots)
    placed = np.take_along_axis(members, placed, axis=1).reshape(some.experts.shape)
    placed = settled(placed, some.experts)
    cost = (placed != some.experts).sum(axis=(1, 2))
    return Point(which, Rows.of(placed, some.units).worst, cost, placed)


def chosen(rows: Rows, points: list[Point], budget: int) -> Ints:
    """The experts of all rows where the budget takes them."""
    ways = [[Stop(0, worst)] for worst in rows.worst.tolist()]
    there: list[list[Ints]] = [[experts] for experts in rows.experts]
    for point in points:
        for row, worst, cost, experts in zip(
            point.rows.tolist(), point.worst.tolist(), point.cost.tolist(), point.experts, strict=True
        ):
            ways[row].append(Stop(cost, worst))
            there[row].append(experts)
    return np.stack([stops[at] for stops, at in zip(there, spend(ways, budget), strict=True)])


def apart(experts: Ints, before: Rows) -> Ints:
    """The same without an expert that stands twice on a rank and need not."""
    if not second(experts).any():
        return experts
    rows = Rows.of(experts, before.units)
    part_twins(rows)
    back = (rows.worst > before.worst) & ~needless_twins(before)
    rows.experts[back] = before.experts[back]
    return rows.experts
