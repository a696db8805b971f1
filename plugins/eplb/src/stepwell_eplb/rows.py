"""Ranks that share the experts of a layer, and what each of them has to do, counted exactly in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
BITS = 58
"""The load of a layer stays below two to the power of this."""


@dataclass(slots=True)
class Rows:
    """Some layers, or the nodes of some layers, side by side: each row has its own experts on its own ranks."""

    experts: Ints
    """[rows, ranks, slots of a rank]"""
    units: Ints
    """[rows, experts]: what each has to do, in fractions of a token."""
    count: Ints
    """[rows, experts]: replicas of each."""
    share: Ints
    """[rows, experts]: what one replica has to do."""
    loads: Ints
    """[rows, ranks]"""

    @classmethod
    def of(cls, experts: Ints, units: Ints) -> Rows:
        """Rows of these experts in these slots; `units` [rows, experts]."""
        count = counts(flat(experts), units.shape[1])
        share = units // np.maximum(count, 1)
        return cls(experts, units, count, share, loads(experts, share))

    def taken(self, rows: npt.NDArray[np.intp]) -> Rows:
        """A copy of some of the rows."""
        return Rows(self.experts[rows], self.units[rows], self.count[rows], self.share[rows], self.loads[rows])

    def put(self, rows: npt.NDArray[np.intp], changed: Rows) -> None:
        """Write rows back that were taken."""
        self.experts[rows], self.loads[rows] = changed.experts, changed.loads
        self.count[rows], self.share[rows] = changed.count, changed.share

    @property
    def worst(self) -> Ints:
        """The load of the hottest rank of each row."""
        return self.loads.max(axis=1)

    @property
    def mean(self) -> Ints:
        """Of the ranks of each row, rounded up: no placement has a hottest rank below it."""
        return -(-self.loads.sum(axis=1) // self.loads.shape[1])


def units_of(load: Ints) -> Ints:
    """Tokens [layers, experts] in fractions that are as fine as the largest sum of a layer allows."""
    return load << (BITS - int(load.sum(axis=1).max(initial=0)).bit_length())


def own_units_of(load: Ints) -> Ints:
    """The same, each layer's as fine as its own sum allows: no layer has to do with another."""
    sums = load.sum(axis=1, keepdims=True).astype(np.float64)
    return load << (BITS - np.frexp(sums)[1]).astype(np.int64)


def counts(slots: npt.NDArray[np.integer], experts: int) -> Ints:
    """[rows, experts]: replicas of each expert in [rows, slots]."""
    rows = len(slots)
    at = slots + np.arange(rows)[:, None] * experts
    return np.bincount(at.ravel(), minlength=rows * experts).reshape(rows, experts)


def loads(experts: Ints, share: Ints) -> Ints:
    """What each rank has to do, [rows, ranks]."""
    return np.take_along_axis(share, flat(experts), axis=1).reshape(experts.shape).sum(axis=2)


def flat(experts: Ints) -> Ints:
    """[rows, ranks, slots of a rank] as [rows, slots]; of no rows, too."""
    rows, ranks, slots = experts.shape
    return experts.reshape(rows, ranks * slots)
