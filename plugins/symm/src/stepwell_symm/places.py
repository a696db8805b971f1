"""Where things lie in the memory that ranks share: the same on every rank, in bytes from where a batch's part begins.

Nothing here touches memory; a part is laid out once, from what a model exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell import Traffic

ALIGNED = 256
RUN = 128
"""Numbers that share a scale."""
CHUNK = 4
"""Rows of sums that share a flag."""
SIZES = {"bfloat16": 2, "float32": 4}
"""Bytes of a number, of the dtypes that travel."""


def stacked(sizes: Mapping[str, int]) -> dict[str, int]:
    """Where each thing begins when they lie one after another, and as `size` where the last ends."""
    places, end = {}, 0
    for name, size in sizes.items():
        places[name] = end
        end += -(-size // ALIGNED) * ALIGNED
    return {**places, "size": end}


@dataclass(frozen=True, slots=True)
class Row:
    """A token as it travels."""

    hidden: int
    item: int
    """Bytes of a number, there and back."""
    eight: bool
    """Whether it goes there as 8-bit floats."""

    @property
    def size(self) -> int:
        """Bytes of its numbers on the way there."""
        return self.hidden * (1 if self.eight else self.item)

    @property
    def scales(self) -> int:
        """Bytes of its scales."""
        return 4 * (self.hidden // RUN) if self.eight else 0

    @property
    def sums(self) -> int:
        """Bytes on the way back."""
        return self.hidden * self.item


@dataclass(frozen=True, slots=True)
class Places:
    """Of `symm`."""

    acks: int
    """int32 [ranks]: the last turn of which each has read all."""
    matrix: int
    """Words [ranks, ranks]: tokens from each to each."""
    totals: int
    """Words [ranks, own experts + 1]: tokens from each, and last how many it has in all."""
    sent: int
    """int32 [ranks, programs]: flags of tokens."""
    back: int
    """int32 [ranks, chunks]: flags of sums."""
    tokens: int
    scales: int
    experts: int
    """int64 [rows, top_k]."""
    weights: int
    """float32 [rows, top_k]."""
    sums: int
    """[ranks, max_tokens, hidden]."""
    size: int

    @classmethod
    def of(cls, traffic: Traffic, ranks: int, row: Row, programs: int) -> Places:
        """For this traffic."""
        rows = ranks * traffic.max_tokens
        sizes = {
            "acks": 4 * ranks,
            "matrix": 8 * ranks * ranks,
            "totals": 8 * (traffic.experts + ranks),
            "sent": 4 * ranks * programs,
            "back": 4 * ranks * chunks(traffic.max_tokens),
            "tokens": rows * row.size,
            "scales": rows * row.scales,
            "experts": 8 * rows * traffic.top_k,
            "weights": 4 * rows * traffic.top_k,
            "sums": rows * row.sums,
        }
        return cls(**stacked(sizes))


@dataclass(frozen=True, slots=True)
class LowPlaces:
    """Of `symm-low-latency`; rows are [ranks, capacity]."""

    acks: int
    """As above."""
    totals: int
    """As above."""
    sent: int
    """int32 [rows]: flags of tokens."""
    back: int
    """int32 [rows]: flags of sums."""
    tokens: int
    scales: int
    marks: int
    """int32 [rows, top_k]: which expert, and how many rows of the same rank it has before."""
    weights: int
    """float32 [rows, top_k]."""
    sums: int
    size: int

    @classmethod
    def of(cls, traffic: Traffic, ranks: int, row: Row, capacity: int) -> LowPlaces:
        """For this traffic."""
        rows = ranks * capacity
        sizes = {
            "acks": 4 * ranks,
            "totals": 8 * (traffic.experts + ranks),
            "sent": 4 * rows,
            "back": 4 * rows,
            "tokens": rows * row.size,
            "scales": rows * row.scales,
            "marks": 4 * rows * traffic.top_k,
            "weights": 4 * rows * traffic.top_k,
            "sums": rows * row.sums,
        }
        return cls(**stacked(sizes))


def chunks(rows: int) -> int:
    """Flags that so many rows of sums take."""
    return -(-rows // CHUNK)
