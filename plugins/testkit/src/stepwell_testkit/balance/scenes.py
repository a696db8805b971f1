"""Loads and the places for them: small known ones, and random ones of every shape that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell import Balancer, ExpertLoad, Placement, Topology


@dataclass(frozen=True, eq=False)
class Scene:
    """One question to a balancer."""

    load: ExpertLoad
    topology: Topology
    current: Placement | None = None

    @property
    def experts(self) -> int:
        """Of a layer."""
        return int(self.load.shape[1])

    def __str__(self) -> str:
        return f"{self.load.shape[0]} layers x {self.experts} experts on {self.topology}"

    def put(self, balancer: Balancer) -> npt.NDArray[Any]:
        """Ask it; what was given is protected."""
        self.load.flags.writeable = False
        if self.current is not None:
            self.current.experts.flags.writeable = False
        return np.array(balancer.place(self.load, self.topology, self.current).experts)

    def after(self, balancer: Balancer, before: ExpertLoad) -> Scene:
        """The same with experts standing where the balancer put them for another load."""
        placed = replace(self, load=before).put(balancer)
        return replace(self, current=Placement(placed.astype(np.int32)))


def scene(rows: list[list[int]], ranks: int, slots: int, nodes: int = 1, groups: int = 1) -> Scene:
    """One written out; `slots` of all ranks."""
    return Scene(np.array(rows, np.int64), Topology(ranks, slots // ranks, nodes, groups))


B095 = (
    scene([[17, 33, 32, 26]], ranks=3, slots=6),
    scene([[15, 3, 1, 25, 35, 1]], ranks=4, slots=8),
)
"""Packing by load alone puts two replicas of an expert on one rank here."""
B096 = scene(
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]],
    ranks=8, slots=16, nodes=2, groups=4,
)  # fmt: skip
"""Two layers of a small model with groups, on two nodes."""
CROWDED = scene([[5, 9, 1], [0, 0, 7]], ranks=2, slots=10)
"""More slots a rank than experts: some stand twice on one, whatever is done."""

HOT = scene([[1, 1, 1, 1, 1, 1, 1, 1_000]], ranks=4, slots=12)
"""One expert has nearly all the tokens, and there is room for it on every rank."""
REFUSED = {
    "fewer slots than experts": scene([[1] * 9], ranks=2, slots=8),
    "no ranks": Scene(np.ones((1, 4), np.int64), Topology(0, 4)),
    "no slots": Scene(np.ones((1, 4), np.int64), Topology(2, 0)),
    "nodes of unequal size": scene([[1] * 4], ranks=4, slots=8, nodes=3),
    "groups of unequal size": scene([[1] * 8], ranks=4, slots=8, groups=3),
    "a load without layers": Scene(np.ones(4, np.int64), Topology(2, 2)),
    "a placement of more layers": replace(B096, current=Placement(np.zeros((3, 16), np.int32))),
    "a placement of more slots": replace(B096, current=Placement(np.zeros((2, 24), np.int32))),
}
"""What does not fit."""


def shapes(seed: int, count: int) -> Iterator[tuple[int, Topology]]:
    """Experts, and a topology that they fit: with groups as many on each node, and no repeats that have to be."""
    dice = np.random.default_rng(seed)
    for _ in range(count):
        nodes = int(dice.choice((1, 1, 2, 4)))
        ranks = nodes * int(dice.integers(1, 5))
        groups = nodes * int(dice.integers(1, 4)) if dice.random() < 0.5 else 1
        experts = groups * int(dice.integers(1, 9))
        least = -(-experts // ranks)
        most = max(least, experts // nodes if groups > 1 else experts)
        per_rank = int(dice.integers(least, min(most, least + 6) + 1))
        yield experts, Topology(ranks, per_rank, nodes, groups)


def loads(seed: int, layers: int, experts: int) -> Iterator[ExpertLoad]:
    """Loads of several sorts: none, equal, ties, a few hot ones, heavy tails, huge numbers."""
    dice = np.random.default_rng(seed)
    shape = layers, experts
    yield np.zeros(shape, np.int64)
    yield np.full(shape, 7, np.int64)
    yield dice.integers(0, 3, shape)
    yield np.where(dice.random(shape) < 0.15, dice.integers(500, 9_000, shape), dice.integers(0, 20, shape))
    yield np.asarray(1_000 * dice.pareto(1.1, shape), np.int64)
    yield dice.integers(0, 2**40, shape)


def scenes(seed: int, count: int, layers: int = 3) -> Iterator[Scene]:
    """Each shape with one sort of load after the other."""
    for number, (experts, topology) in enumerate(shapes(seed, count)):
        sorts = list(loads(seed + number, layers, experts))
        yield Scene(sorts[number % len(sorts)], topology)
