"""How far a stored prefix can be used when it takes pages of several pools: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALL, TRAILING, GROUPS = "all_pages", "trailing_pages", "block_groups"


@dataclass(frozen=True, slots=True)
class Side:
    """What is there of a pool beside KV, and what SGLang needs of it."""

    name: str
    policy: str
    present: Sequence[bool]
    """Of each page of the prefix; of `block_groups`: of each key of its groups."""
    trailing: int = 1
    """Pages at the end of a prefix that have to be there."""
    block_pages: int = 0
    group_pages: int = 0


@dataclass(frozen=True, slots=True)
class Reach:
    """The longest usable prefix, in pages; each pool's own; and every length that all of them can serve."""

    pages: int
    pools: dict[str, int]
    lengths: list[int]


def run(present: Sequence[bool]) -> int:
    """Length of the leading run."""
    for at, one in enumerate(present):
        if not one:
            return at
    return len(present)


def reach(kv_pages: int, sides: Sequence[Side]) -> Reach:
    """Every length up to `kv_pages`, less those that a pool cannot serve. A pool with none is left out of `pools`."""
    pools = {"kv": kv_pages} if kv_pages else {}
    lengths = set(range(1, kv_pages + 1))
    for side in sides:
        if side.policy == GROUPS:
            covered = min(_covered(side), kv_pages)  # another form of the same pages: it adds, and never limits
            if covered:
                pools[side.name] = covered
            continue
        can = _lengths(side, kv_pages)
        if can:
            pools[side.name] = max(can)
        lengths &= can
    return Reach(max(lengths, default=0), pools, sorted(lengths))


def _lengths(side: Side, most: int) -> set[int]:
    if side.policy == ALL:
        return set(range(1, min(run(side.present), most) + 1))
    if side.policy != TRAILING:
        raise ValueError(f"an unknown hit policy: {side.policy}")
    lengths, unbroken = set(), 0
    for length in range(1, most + 1):
        unbroken = unbroken + 1 if side.present[length - 1] else 0
        if unbroken >= min(max(1, side.trailing), length):
            lengths.add(length)
    return lengths


def _covered(side: Side) -> int:
    if side.block_pages <= 0 or side.group_pages <= 0:
        return 0
    return run(side.present) // side.group_pages * side.block_pages
