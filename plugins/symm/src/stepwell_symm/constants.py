"""What kernels are compiled for: the sizes of a model's exchange, and where things lie in the memory of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell import Traffic
from stepwell_symm.places import CHUNK, RUN, LowPlaces, Places, Row, chunks

BLOCK = 512
"""Tokens, or choices of a small batch, that are looked through at a time."""
REGISTERS = 128
"""Of a thread that reduces: with more, half of the rows would wait for the other half."""

Constants = Mapping[str, int | bool]
"""Of one kernel."""


@dataclass(frozen=True, slots=True)
class Given:
    """What all kernels of a rank have in common."""

    traffic: Traffic
    row: Row
    rank: int
    ranks: int
    timed: bool
    """Whether there is a clock to wait by."""

    @property
    def who(self) -> Constants:
        """A rank among the others."""
        return {"RANK": self.rank, "WORLD": self.ranks}

    @property
    def waits(self) -> Constants:
        """The same, and how to wait for them."""
        return {**self.who, "TIMED": self.timed}

    @property
    def tokens(self) -> Constants:
        """How tokens travel."""
        runs = wide(max(self.row.hidden // RUN, 1))
        return {"TOP": self.traffic.top_k, "HIDDEN": self.row.hidden, "RUNS": runs, "EIGHT": self.row.eight}

    @property
    def bins(self) -> Constants:
        """Places to count experts in."""
        return {"BINS": wide(self.traffic.experts)}

    @property
    def own(self) -> Constants:
        """Those of a rank."""
        return {"OWN": wide(self.traffic.experts // self.ranks)}


def normal_constants(given: Given, places: Places, programs: int) -> dict[str, Constants]:
    """Of `symm`, by kernel."""
    traffic, row, flags = given.traffic, given.row, given.ranks * programs
    told = {**given.waits, "MATRIX": places.matrix, "TOTALS": places.totals}
    rows = {"SENT": places.sent, "TOKENS": places.tokens, "SCALES": places.scales}
    choices = {"EXPERTS": places.experts, "WEIGHTS": places.weights}
    sums = {"BACK": places.back, "SUMS": places.sums, "CAPACITY": traffic.max_tokens, "CHUNK": CHUNK}
    sums |= {"FLAGS": chunks(traffic.max_tokens)}
    waits = {"SENT": places.sent, "RANK": given.rank, "TIMED": given.timed}
    return {
        "plan": {**told, **given.bins, "ACKS": places.acks, "TOP": traffic.top_k, "BLOCK": BLOCK},
        "learn": {**told, **given.own},
        "send": {**given.who, **given.tokens, **words(row.sums), **rows, **choices},
        "arrive": {**waits, "FLAGS": flags, "BLOCK": wide(flags)},
        "back": {**given.who, **sums, **words(row.sums)},
        "gather": {**given.waits, **sums, **numbers(row), "ACKS": places.acks, "DIRECT": True},
    }


def low_constants(given: Given, places: LowPlaces, capacity: int) -> dict[str, Constants]:
    """Of `symm-low-latency`, by kernel."""
    row = given.row
    told = {"TOTALS": places.totals, "CAPACITY": capacity}
    rows = {"SENT": places.sent, "TOKENS": places.tokens, "SCALES": places.scales, "MARKS": places.marks}
    here = {**given.waits, **given.tokens, **rows, **told}
    sums = {"BACK": places.back, "SUMS": places.sums, "CAPACITY": capacity, **numbers(row)}
    acks, weights = {"ACKS": places.acks}, {"WEIGHTS": places.weights}
    reduces = {"RANK": given.rank, "TOP": given.traffic.top_k, "maxnreg": REGISTERS}
    return {
        "send": {**here, **given.bins, **words(row.sums), **acks, **weights, "MANY": BLOCK},
        "spread": {**here, **given.own, **words(row.size)},
        "reduce": {**sums, **told, **weights, **reduces},
        "gather": {**given.waits, **sums, **acks, "CHUNK": 1, "FLAGS": capacity, "DIRECT": False},
    }


def words(size: int) -> Constants:
    """A row of so many bytes, in words of 32 bits."""
    return {"WORDS": size // 4, "BLOCK": wide(size // 4)}


def numbers(row: Row) -> Constants:
    """A row of sums."""
    return {"HIDDEN": row.hidden, "BLOCK": wide(row.hidden)}


def wide(count: int) -> int:
    """The least power of two that holds so many."""
    return 1 << (count - 1).bit_length()
