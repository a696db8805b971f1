"""For which numbers of rows there are graphs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
"""Where one row more is felt; beyond, every 32."""
STRIDE = 32


def sizes(graphs: bool | Sequence[int], most: int) -> tuple[int, ...]:
    """Ascending, none above `most`; that a step of all slots has one is seen to, unless the sizes were named."""
    if graphs is False:
        return ()
    if graphs is True:
        return tuple(
            sorted({size for size in (*SMALL, *range(SMALL[-1] + STRIDE, most, STRIDE)) if size < most} | {most})
        )
    return tuple(sorted({min(size, most) for size in graphs}))


def fit(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that holds so many rows."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else None
