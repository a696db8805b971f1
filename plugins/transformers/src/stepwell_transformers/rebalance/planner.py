"""From what experts were asked for to the moves that even it out; the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell import Balancer, ExpertLoad, Placement, Topology
from stepwell_transformers.balance import LayerMoves, Recorder, Trigger, batches, digest, moves, utilisation


@dataclass(frozen=True, slots=True)
class Planned:
    """What a look at the counts came to."""

    used: float
    """What ranks have to do on average over what the hottest has: the mean over layers."""
    digest: int
    """Of the plan; ranks that would do anything differently have another one."""
    batches: Sequence[Sequence[LayerMoves]] = ()
    why: str = ""
    """For the log, where there is a plan."""
    reached: tuple[ExpertLoad, Placement] | None = None
    """The counts that it was made for, and what came of them."""


GIVEN_UP = Planned(1.0, 0)
"""A plan that some rank did not have: it was tried."""


class Planner:
    """Keeps the counts. On one thread."""

    def __init__(
        self, balancer: Balancer, topology: Topology, recorder: Recorder, trigger: Trigger, layers: int
    ) -> None:
        """`layers`: how many change their places at once."""
        self._balancer, self._topology, self._layers = balancer, topology, layers
        self._recorder, self._trigger = recorder, trigger

    def look(
        self, counts: npt.NDArray[np.int64], passes: int, current: Placement, last: Planned | None = None
    ) -> Planned:
        """Add the counts [layers, experts] of so many passes; plan if that is due. Raises what a balancer raises.

        `last`: what all ranks did about a plan that was due since they looked before.
        """
        if last is not None:
            self._recorder.planned()
            if last.reached is not None:
                self._trigger.planned(*last.reached, self._topology.ranks)
        self._recorder.add(counts, passes)
        load, ranks = self._recorder.load(), self._topology.ranks
        used = float(utilisation(load, current, ranks).mean())
        due = self._trigger.due(load, current, ranks, self._recorder.since)
        if due is None:
            return Planned(used, digest(current, current, ()))
        following = self._kept(self._balancer.place(load, self._topology, current), current, due.layers)
        plan = moves(current, following, ranks, self._topology.nodes)
        reached = float(utilisation(load, following, ranks).mean())
        count = sum(len(layer.copies) for layer in plan)
        since = "the last plan is old" if due.old else f"{len(due.layers)} layers are uneven, one at {due.worst:.0%}"
        why = f"{since}: {count} moves in {len(plan)} layers, from {used:.0%} used to {reached:.0%}"
        return Planned(
            used, digest(current, following, plan), list(batches(plan, self._layers)), why, (load, following)
        )

    def _kept(self, placed: Placement, current: Placement, layers: Sequence[int]) -> Placement:
        """Layers that no plan is due for stay as they are."""
        rows = current.experts.copy()
        rows[list(layers)] = placed.experts[list(layers)]
        return Placement(rows)
