"""Where each expert's replicas live."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ExpertLoad = npt.NDArray[np.int64]
"""[layers, experts]: tokens that each expert got; 0 or more."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where experts can stand: slot s is on rank s // slots_per_rank, rank r on node r // (ranks / nodes)."""

    ranks: int
    slots_per_rank: int
    nodes: int = 1
    """A divisor of `ranks`."""
    groups: int = 1
    """Sets of neighbouring experts that a router chooses between first, as some models do; a divisor of experts."""

    @property
    def slots(self) -> int:
        """Of all ranks together."""
        return self.ranks * self.slots_per_rank


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """For each layer, which expert stands in each slot; every expert stands in one at least. Not to be written to."""

    experts: npt.NDArray[np.int32]
    """[layers, slots]"""


class Balancer(ABC):
    """Places replicas of experts. Pure: integers in, the same placement out, on every machine; ties go by number.

    Tokens of an expert are spread evenly over its replicas. No rank gets two replicas of one expert unless it has more
    replicas than there are ranks.
    """

    @abstractmethod
    def place(self, load: ExpertLoad, topology: Topology, current: Placement | None) -> Placement:
        """Place the experts of each layer. ConfigError, in one sentence, for shapes that do not fit each other.

        `current`: where they stand now, if anywhere; a rank's slots may be taken in any order, but what stays on a rank
        stays in its slot.
        """
