"""Where each expert's replicas live."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """Where physical experts can stand."""

    nodes: int
    ranks: int
    slots_per_rank: int


@dataclass(frozen=True, slots=True)
class Placement:
    """For each layer, which logical expert stands in each physical slot."""

    experts: tuple[tuple[int, ...], ...]


class Balancer(ABC):
    """Places replicas of experts. Pure and tie-stable: equal inputs give equal placements."""

    @abstractmethod
    def place(self, load: Sequence[Sequence[float]], topology: Topology, current: Placement | None) -> Placement:
        """Place the experts of each layer, given `load[layer][expert]`. Bad shapes: ConfigError in one sentence."""
