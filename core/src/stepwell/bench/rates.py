"""Rounds in which a storage and its baselines take turns, and the medians that come of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stepwell.bench.baseline import Baseline
from stepwell.bench.moves import Subject

Rates = Mapping[tuple[str, str], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One operation on pages of one size: medians in MB/s (10^6 bytes), and the least and most of all rounds."""

    backend: str
    page_bytes: int
    op: str
    mb_s: float
    baseline: str
    baseline_mb_s: float
    ratio: float
    spread: tuple[float, float]
    baseline_spread: tuple[float, float]
    round_ratio: float
    """The median of the ratios of each round: what slows a whole round down does not show in it."""
    plain_mb_s: float | None = None
    """Plain system calls on the backend's own memory, where the backend keeps files."""
    plain_ratio: float | None = None

    def __str__(self) -> str:
        text = (
            f"{self.backend}  {self.page_bytes // 1024} KiB  {self.op}  {self.mb_s:,.0f} MB/s {_range(self.spread)}  "
            f"{self.baseline} {self.baseline_mb_s:,.0f} {_range(self.baseline_spread)}  "
            f"ratio {self.ratio:.2f} (by round {self.round_ratio:.2f})"
        )
        return text + (f"  plain {self.plain_mb_s:,.0f}, ratio {self.plain_ratio:.2f}" if self.plain_mb_s else "")


@dataclass(frozen=True, slots=True)
class Asked:
    """How fast a backend says what it has: the median in keys a second, and the least and most of all rounds."""

    backend: str
    page_bytes: int
    keys: int
    """Keys in one round."""
    keys_s: float
    spread: tuple[float, float]

    def __str__(self) -> str:
        size = f"{self.page_bytes // 1024} KiB"
        return f"{self.backend}  {size}  contains  {self.keys_s:,.0f} keys/s {_range(self.spread)}"


def measure(
    name: str, subject: Subject, baseline: Baseline, plain: Baseline | None, page_bytes: int, pages: int, rounds: int
) -> tuple[list[Row], Asked]:
    """A row for put and one for get, from `rounds` rounds in which all take turns; one before them is not counted."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    sides: list[tuple[str, Subject | Baseline]] = [("subject", subject), ("baseline", baseline)]
    if plain is not None and plain is not baseline:
        sides.append(("plain", plain))
    for round in range(rounds + 1):
        for side, one in sides if round % 2 else sides[::-1]:
            found = {"put": one.put(), "get": one.get()}
            if isinstance(one, Subject):
                found["contains"] = one.contains()
            one.clear()
            for op, rate in found.items() if round else ():
                rates[side, op].append(rate)
    asked = rates["subject", "contains"]
    rows = [_row(name, page_bytes, op, baseline.name, rates) for op in ("put", "get")]
    return rows, Asked(name, page_bytes, pages, round_(median(asked)), _spread(asked))


def _row(name: str, page_bytes: int, op: str, baseline: str, rates: Rates) -> Row:
    own, other, plain = rates["subject", op], rates["baseline", op], rates.get(("plain", op))
    middle, base = median(own), median(other)
    return Row(
        backend=name,
        page_bytes=page_bytes,
        op=op,
        mb_s=round_(middle),
        baseline=baseline,
        baseline_mb_s=round_(base),
        ratio=round(middle / base, 3),
        spread=_spread(own),
        baseline_spread=_spread(other),
        plain_mb_s=round_(median(plain)) if plain else None,
        plain_ratio=round(middle / median(plain), 3) if plain else None,
        round_ratio=round(median(one / two for one, two in zip(own, other, strict=True)), 3),
    )


def round_(rate: float) -> float:
    """As much of a rate as means anything."""
    return round(rate, 1)


def _spread(rates: Sequence[float]) -> tuple[float, float]:
    return round_(min(rates)), round_(max(rates))


def _range(spread: tuple[float, float]) -> str:
    return f"[{spread[0]:,.0f}-{spread[1]:,.0f}]"
