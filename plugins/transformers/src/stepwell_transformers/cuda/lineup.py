"""A plan's rows in the order in which the device computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell import Row


@dataclass(frozen=True, slots=True)
class Lineup:
    """Rows of one token first: their tokens are on the device already."""

    rows: tuple[Row, ...]
    order: tuple[int, ...]
    """Where each stands in the plan."""
    decodes: int
    """How many have one token."""
    tokens: npt.NDArray[np.int32]
    """Those of the others, one after another."""

    @property
    def triples(self) -> list[tuple[int, int, int]]:
        """Slot, start and count of each."""
        return [(row.slot, row.start, row.count) for row in self.rows]

    @property
    def sampling(self) -> list[int]:
        """Which of them sample."""
        return [at for at, row in enumerate(self.rows) if row.sample]


def line_up(rows: Sequence[Row]) -> Lineup:
    """Decodes, then prompts, each as they came."""
    order = sorted(range(len(rows)), key=lambda at: rows[at].count > 1)
    lined = tuple(rows[at] for at in order)
    decodes = sum(row.count == 1 for row in rows)
    parts = [_brought(row) for row in lined[decodes:]]
    return Lineup(lined, tuple(order), decodes, np.concatenate(parts) if parts else np.empty(0, np.int32))


def _brought(row: Row) -> npt.NDArray[np.int32]:
    if row.tokens is None:
        raise ValueError(f"a row of {row.count} tokens brings none")
    return np.frombuffer(row.tokens, np.int32)
