"""Whether a step runs as two halves, and how: decided from what all ranks agreed on, so that all of them do the same.

A rank that split alone would dispatch twice where the others do once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stepwell import Row
from stepwell_transformers.twobatch.split import PART


class Way(Enum):
    """How a step's forward runs."""

    WHOLE = "whole"
    EAGER = "eager"
    """Two halves, operation by operation."""
    GRAPH = "graph"
    """Two halves in one captured graph."""


@dataclass(frozen=True, slots=True)
class Size:
    """What all ranks agreed on about a step."""

    least: int
    """Tokens of the rank that brings fewest, and of the one that brings most."""
    most: int
    prefill: bool
    """Whether any of them has rows of more than one token."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Size:
        """Of ranks that all have these rows."""
        tokens = sum(row.count for row in rows)
        return cls(tokens, tokens, tokens > len(rows))

    @property
    def splits(self) -> bool:
        """Whether no rank has an empty half."""
        return self.least >= (2 * PART if self.prefill else 2)


def decide(size: Size, *, wanted: bool, graph: bool) -> Way:
    """`wanted`: it pays; `graph`: every rank has one of halves for so many decodes."""
    if not wanted or not size.splits:
        return Way.WHOLE
    return Way.GRAPH if graph and not size.prefill else Way.EAGER
