"""Which experts stand in which slots, and the weights that a rank's slots hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from stepwell import ConfigError
from stepwell_transformers.spread.cut import Readable

Row = npt.NDArray[np.int32]
"""[slots]: the expert in each slot of a layer, over all ranks."""


def first_row(experts: int, spare: int) -> Row:
    """Each expert once, in order; then, in the spare slots, again."""
    return np.concatenate([np.arange(experts), np.arange(spare) % experts]).astype(np.int32)


def check_even(experts: int, spare: int, ranks: int, name: str) -> None:
    """ConfigError where ranks would not have as many slots each."""
    lacking = -(experts + spare) % ranks
    if not lacking:
        return
    raise ConfigError(
        f"runner.experts.spare: {experts} experts of {name} and {spare} spare slots cannot be shared evenly by "
        f"{ranks} ranks: set it to {spare + lacking}"
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """A weight of all experts of which a rank takes those in its slots."""

    experts: tuple[int, ...]

    @classmethod
    def of(cls, row: Row, rank: int, ranks: int) -> Slots:
        """Those of one of some ranks."""
        return cls(tuple(np.split(row, ranks)[rank].tolist()))

    def part(self, whole: Readable, shape: Sequence[int], rank: int, size: int) -> torch.Tensor:
        """Expert by expert, in the order of slots; ranks that cut other weights are no matter here."""
        rest = (slice(None),) * (len(shape) - 1)
        return torch.cat([whole[(run, *rest)] for run in self._runs()])

    def _runs(self) -> Iterator[slice]:
        """Neighbours are read at once."""
        start = 0
        for at in range(1, len(self.experts) + 1):
            if at == len(self.experts) or self.experts[at] != self.experts[at - 1] + 1:
                yield slice(self.experts[start], self.experts[at - 1] + 1)
                start = at
