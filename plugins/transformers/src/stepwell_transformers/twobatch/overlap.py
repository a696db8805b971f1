"""Forwards of steps, as two halves where that is possible and pays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepwell import ConfigError, Row
from stepwell_transformers.experts.told import Told
from stepwell_transformers.twobatch.decide import Size, Way, decide
from stepwell_transformers.twobatch.pace import From, Measured, Pace, Watch
from stepwell_transformers.twobatch.split import largest, split
from stepwell_transformers.twobatch.turns import Turns

if TYPE_CHECKING:
    from stepwell_transformers.model import PagedModel

T = TypeVar("T")
Prepare = Callable[[Sequence[Row]], Callable[[Told], T]]
"""From rows to their forward, which fails no more for what is wrong with the rows."""
IN_FLIGHT = 2
"""Batches that are between dispatch and combine while two halves take turns."""


class Overlap:
    """Of one executor, on the thread that computes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._turns = Turns()
        self._broken = ""

    def forwards(self, rows: Sequence[Row], size: Size, prepare: Prepare[T]) -> list[T]:
        """What the forwards of all rows, or of each half, answer; how many there are is the same on all ranks.

        Both halves are prepared before the first one starts. Where one of them fails then, tokens are under way that
        nobody waits for any more, so that nothing is computed from there on.
        """
        if self._broken:
            raise RuntimeError(f"an earlier step ended while tokens were on their way to experts ({self._broken})")
        way = decide(size, wanted=self._pace.wants(size), graph=False)
        halves = None if way is Way.WHOLE else split(rows)
        batches = [rows] if halves is None else [halves.first, halves.second]
        works = [prepare(batch) for batch in batches]
        self._pace.begin()
        found = self._taken_in_turns(size, *works) if halves else [works[0](Told(size.prefill, size.most))]
        self._pace.end(size, halved=halves is not None)
        return found

    def _taken_in_turns(self, size: Size, first: Callable[[Told], T], second: Callable[[Told], T]) -> list[T]:
        told = Told(size.prefill, largest(size.most, prefill=size.prefill), turn=self._turns.turn)
        try:
            return list(self._turns.run(partial(first, told), partial(second, told)))
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise


def overlap_of(
    setting: Literal["off", "auto"] | int,
    model: PagedModel,
    watch: Watch[Any],
    log: logging.Logger,
    least: Callable[[int], int] | None = None,
) -> Overlap | None:
    """As a config asks for it. ConfigError where it named a size, and it cannot be had; auto then does without.

    `least`: of what all say who compute a step; None: they are the model's own ranks.
    """
    if setting == "off":
        return None
    if (why := _lacking(model)) is not None:
        if setting != "auto":
            raise ConfigError(f"runner.overlap: {setting} tokens do not run as two halves, since {why}; use 'off'")
        log.info("steps run as one batch each: %s", why)
        return None
    if setting != "auto":
        return Overlap(From(setting))

    def say(choice: str) -> None:
        if not model.group.rank:
            log.info("overlap: %s", choice)

    return Overlap(Measured(least or (lambda own: model.group.least(own)[0]), watch, say))


def _lacking(model: PagedModel) -> str | None:
    if model.experts is None:
        return "this model has no experts that are dispatched"
    if model.experts.in_flight < IN_FLIGHT:
        return f"its dispatcher takes {model.experts.in_flight} batch at a time"
    return None
