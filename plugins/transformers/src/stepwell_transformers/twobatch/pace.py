"""For which steps two halves pay: from so many tokens on, or as measured on the steps themselves.

Measured: of each size some steps run either way, in turn. Halves are kept where they were not slower, on any rank.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

import torch

from stepwell_transformers.twobatch.decide import Size

M = TypeVar("M")

TRIALS = 5
"""Steps of a size that run each way; the first of each, which may compile or make room, does not count."""
AGAIN = 20_000
"""Steps of a size after which it is tried anew: what slows a link comes and goes."""
SMALLEST = 32
"""Tokens below which halves are not tried: weights are read twice then, for next to nothing."""


class Pace(ABC):
    """Asked once a step, with the same sizes in the same order on all ranks."""

    @abstractmethod
    def wants(self, size: Size) -> bool:
        """Whether a step is to run as two halves, if it can."""

    @abstractmethod
    def begin(self) -> None:
        """The forward of the step begins."""

    @abstractmethod
    def end(self, size: Size, *, halved: bool) -> None:
        """It has been computed, or enqueued."""


class From(Pace):
    """From so many tokens on."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def wants(self, size: Size) -> bool:
        return size.most >= self._tokens

    def begin(self) -> None:
        pass

    def end(self, size: Size, *, halved: bool) -> None:
        pass


class Watch(ABC, Generic[M]):
    """Tells time where steps are computed."""

    @abstractmethod
    def now(self) -> M:
        """A moment behind all that was started so far."""

    @abstractmethod
    def between(self, begin: M, end: M) -> float:
        """Seconds; may wait for them."""


class HostWatch(Watch[float]):
    """Of work that has ended when its call returns."""

    def now(self) -> float:
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        return end - begin


class DeviceWatch(Watch[torch.cuda.Event]):
    """Of work on a device: by events on the stream that is current."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()  # type: ignore[no-untyped-call]
        return float(begin.elapsed_time(end)) / 1e3  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Trial(Generic[M]):
    spans: dict[bool, list[tuple[int, M, M]]] = field(default_factory=lambda: {False: [], True: []})
    """Tokens, begin and end of steps that ran either way."""
    choice: bool | None = None
    left: int = AGAIN

    @property
    def next(self) -> bool:
        """Which way the next step goes."""
        return len(self.spans[True]) < len(self.spans[False]) if self.choice is None else self.choice


class Measured(Pace, Generic[M]):
    """By sizes, each up to twice the one before it."""

    def __init__(self, agree: Callable[[int], int], watch: Watch[M], say: Callable[[str], None]) -> None:
        """`agree`: the least that any rank says; `say`: told of each choice."""
        self._agree, self._watch, self._say = agree, watch, say
        self._trials: dict[tuple[bool, int], _Trial[M]] = {}
        self._begun: M | None = None

    def wants(self, size: Size) -> bool:
        return size.most >= SMALLEST and self._trial(size).next

    def begin(self) -> None:
        self._begun = self._watch.now()

    def end(self, size: Size, *, halved: bool) -> None:
        if size.most < SMALLEST or not size.splits:
            return
        assert self._begun is not None
        trial = self._trial(size)
        if trial.choice is None:
            trial.spans[halved].append((size.most, self._begun, self._watch.now()))
            if len(trial.spans[True]) >= TRIALS:
                self._choose(size, trial)
        else:
            trial.left -= 1
            if not trial.left:
                del self._trials[_kind(size)]

    def _trial(self, size: Size) -> _Trial[M]:
        return self._trials.setdefault(_kind(size), _Trial())

    def _choose(self, size: Size, trial: _Trial[M]) -> None:
        whole, halved = (self._seconds_a_token(trial.spans[way]) for way in (False, True))
        trial.choice = bool(self._agree(int(halved <= whole)))
        trial.spans = {False: [], True: []}
        said = "two halves" if trial.choice else "one batch"
        _, bits = _kind(size)
        what = "tokens with prompts" if size.prefill else "decodes"
        self._say(f"{1 << (bits - 1)} to {(1 << bits) - 1} {what}: {said} ({halved / whole:.2f} of the time as halves)")

    def _seconds_a_token(self, spans: list[tuple[int, M, M]]) -> float:
        return median(self._watch.between(begin, end) / tokens for tokens, begin, end in spans[1:])


def _kind(size: Size) -> tuple[bool, int]:
    return size.prefill, size.most.bit_length()
