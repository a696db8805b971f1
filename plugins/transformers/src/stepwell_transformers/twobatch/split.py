"""The rows of a step as two halves of about as many tokens, also inside a prompt.

The second half of a prompt that is cut reads what the first has written: in each layer the first half comes before the
second. Halves are runs of the step's rows, so what they answer, one behind the other, is in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any

import msgspec

from stepwell import Row

PART = 2
"""Fewest tokens of a part of a prompt: a row of one token is a decode, which reads it where the last one was left."""
UNEVEN = 0.52
"""Share of the tokens that the larger half may have before a prompt is cut for it."""
TOKEN_BYTES = 4


class Splits(Enum):
    """What becomes of a field of a step."""

    ROWS = "rows"
    """Each row is in the half that has it; in both if it is cut."""
    BEFORE = "before"
    """Is done before either half, for both."""
    LAYERS = "layers"
    """Is done layer by layer before the first half's, for both."""
    STEP = "step"
    """Is said of the step, not of its rows."""


PLAN: Mapping[str, Splits] = {
    "number": Splits.STEP,
    "rows": Splits.ROWS,
    "opens": Splits.BEFORE,
    "closes": Splits.BEFORE,
    "tables": Splits.BEFORE,
    "loads": Splits.LAYERS,
    "saves": Splits.BEFORE,
    "horizon": Splits.STEP,
}
"""By field of a StepPlan."""

Rule = Callable[[Any, int], tuple[Any, Any]]
"""From a value and how many tokens come before the cut, to the values of both parts."""


def _whole(value: Any, at: int) -> tuple[Any, Any]:
    return value, value


def _behind(start: int, at: int) -> tuple[int, int]:
    return start, start + at


def _shared(count: int, at: int) -> tuple[int, int]:
    return at, count - at


def _by_token(tokens: bytes, at: int) -> tuple[bytes, bytes]:
    return tokens[: at * TOKEN_BYTES], tokens[at * TOKEN_BYTES :]


def _last(value: bool, at: int) -> tuple[bool, bool]:
    return False, value


ROW: Mapping[str, Rule] = {"slot": _whole, "start": _behind, "count": _shared, "tokens": _by_token, "sample": _last}
"""By field of a Row that is cut."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Neither is empty."""

    first: tuple[Row, ...]
    second: tuple[Row, ...]
    cut: bool
    """Whether the last row of the first goes on as the first of the second; it is sampled there."""

    @property
    def most(self) -> int:
        """Tokens of the larger."""
        return max(sum(row.count for row in half) for half in (self.first, self.second))


def split(rows: Sequence[Row]) -> Halves | None:
    """The two halves; None where one of them would be empty."""
    ends = list(accumulate(row.count for row in rows))
    if not ends:
        return None
    middle = ends[-1] / 2
    between = min(range(1, len(rows)), key=lambda at: abs(ends[at - 1] - middle), default=None)
    if between is not None and max(ends[between - 1], ends[-1] - ends[between - 1]) <= UNEVEN * ends[-1]:
        return Halves(tuple(rows[:between]), tuple(rows[between:]), False)
    across = next(at for at, end in enumerate(ends) if end > ends[-1] // 2)
    if (row := rows[across]).count >= 2 * PART:
        at = min(max(ends[-1] // 2 - (ends[across] - row.count), PART), row.count - PART)
        one, other = cut(row, at)
        return Halves((*rows[:across], one), (other, *rows[across + 1 :]), True)
    return None if between is None else Halves(tuple(rows[:between]), tuple(rows[between:]), False)


def cut(row: Row, at: int) -> tuple[Row, Row]:
    """A prompt's row as two, the first of so many tokens."""
    parts = {name: rule(getattr(row, name), at) for name, rule in ROW.items()}
    one, other = ({name: part[half] for name, part in parts.items()} for half in (0, 1))
    return msgspec.structs.replace(row, **one), msgspec.structs.replace(row, **other)


def largest(tokens: int, *, prefill: bool) -> int:
    """The most tokens that a half of so many has, and of any fewer."""
    return max(int(UNEVEN * tokens), -(-tokens // 2) + 1) if prefill else -(-tokens // 2)
