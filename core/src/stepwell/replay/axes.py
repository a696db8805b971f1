"""Axes of plots: where a value lies, and which values are named beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

NICE = (1, 2, 5)
LEAST_S = 1e-3
"""What is quicker is drawn as this: nobody waits for less."""


class Axis(Protocol):
    """Maps values to places."""

    def at(self, value: float) -> float:
        """The place of a value."""

    def ticks(self) -> list[float]:
        """Values to name."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Equal steps."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        step = _step((self.high - self.low) / 4)
        count = math.floor((self.high - self.low) / step + 1e-9)
        return [self.low + number * step for number in range(count + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """Equal factors; `low` and what is below it lie at the start."""

    low: float
    high: float
    start: float
    end: float
    most: int = 6
    """Values to name."""

    def at(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + min(1.0, share) * (self.end - self.start)

    def ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits, stride in ((NICE, 1), ((1,), 1), ((1,), 2), ((1,), 3)):
            found = [digit * 10.0**power for power in range(first, last + 1, stride) for digit in digits]
            found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
            if len(found) <= self.most:
                break
        return found


def times(values: Sequence[float], start: float, end: float, most: int = 6) -> Log:
    """A logarithmic axis of seconds that holds all values, from nice bound to nice bound."""
    low, high = max(LEAST_S, min(values, default=LEAST_S)), max(LEAST_S, *values, LEAST_S)
    floor = max(value for value in _around(low) if value <= low * 1.001)
    ceiling = min(value for value in _around(high) if value >= high * 0.999)
    return Log(floor, max(ceiling, floor * 10), start, end, most)


def shares(values: Sequence[float], start: float, end: float) -> Linear:
    """A linear axis from 0 that holds all values."""
    high = max((value for value in values), default=0.0) or 1.0
    step = _step(high / 4)
    return Linear(0.0, math.ceil(high / step - 1e-9) * step, start, end)


def seconds(value: float) -> str:
    """A time as an axis says it."""
    return f"{value * 1e3:g} ms" if value < 0.9995 else f"{value:,.0f} s" if value >= 10 else f"{value:g} s"


def exact(value: float) -> str:
    """Seconds as a table says them: two decimals, and of what is short as many as tell it from others."""
    return f"{value:,.2f}" if value >= 0.1 or value < 1e-6 else f"{value:.3g}" if value >= 1e-3 else f"{value:.6f}"


def _around(value: float) -> list[float]:
    power = math.floor(math.log10(value))
    return [digit * 10.0**at for at in (power - 1, power, power + 1) for digit in NICE]


def _step(least: float) -> float:
    if least <= 0:
        return 1.0
    return min(value for value in _around(least) if value >= least * 0.999)
