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
IN_FLIGHT = 2
"""Batches that are between dispatch and combine while two halves take turns."""


class Overlap:
    """Of one executor, on the thread that computes."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._turns = Turns()

    def forwards(self, rows: Sequence[Row], size: Size, forward: Callable[[Sequence[Row], Told], T]) -> list[T]:
        """What `forward` answers for all rows, or for each half; how many there are is the same on all ranks."""
        halves = None
        if decide(size, wanted=self.pace.wants(size), graph=False) is not Way.WHOLE:
            halves = split(rows)
        self.pace.begin()
        if halves is None:
            found = [forward(rows, Told(size.prefill, size.most))]
        else:
            told = Told(size.prefill, largest(size.most, prefill=size.prefill), turn=self._turns.turn)
            found = list(self._turns.run(partial(forward, halves.first, told), partial(forward, halves.second, told)))
        self.pace.end(size, halved=halves is not None)
        return found


def overlap_of(
    setting: Literal["off", "auto"] | int, model: PagedModel, watch: Watch[Any], log: logging.Logger
) -> Overlap | None:
    """As a config asks for it. ConfigError where it named a size, and it cannot be had; auto then does without."""
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

    return Overlap(Measured(lambda own: model.group.least(own)[0], watch, say))


def _lacking(model: PagedModel) -> str | None:
    if model.experts is None:
        return "this model has no experts that are dispatched"
    if model.experts.in_flight < IN_FLIGHT:
        return f"its dispatcher takes {model.experts.in_flight} batch at a time"
    return None
