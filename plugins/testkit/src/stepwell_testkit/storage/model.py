"""Random calls as a list of steps, so that a run that fails can be cut down to the few that matter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

PAGES = 40
SHORTEN_S = 1.0


class Step(NamedTuple):
    """One call and the numbers of its pages."""

    call: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.call} {list(self.numbers)}" if self.numbers else self.call


def random_steps(seed: int, calls: Sequence[str], length: int) -> list[Step]:
    """Calls of those kinds on up to eight of `PAGES` pages, in which a page may repeat."""
    dice = random.Random(seed)
    return [
        Step(dice.choice(calls), tuple(dice.randrange(PAGES) for _ in range(dice.randint(0, 8)))) for _ in range(length)
    ]


def shortest(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> Sequence[Step]:
    """Fewer steps that fail still: runs are left out, from half of all down to single steps, while time is left."""
    end = time.monotonic() + SHORTEN_S
    if not fails(steps):
        return steps
    run = len(steps) // 2
    while run:
        at = 0
        while at < len(steps) and time.monotonic() < end:
            fewer = [*steps[:at], *steps[at + run :]]
            if fails(fewer):
                steps = fewer
            else:
                at += run
        run //= 2
    return steps
