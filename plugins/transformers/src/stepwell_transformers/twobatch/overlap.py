"""Forwards of steps, as two halves where that is possible and pays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepwell import ConfigError, Dispatcher, PeerLost, Row
from stepwell_transformers.experts.told import Told, same
from stepwell_transformers.twobatch.decide import Size, Way, decide
from stepwell_transformers.twobatch.pace import From, Measured, Pace, Watch
from stepwell_transformers.twobatch.split import largest, split
from stepwell_transformers.twobatch.turns import Turns

if TYPE_CHECKING:
    from stepwell_transformers.model import PagedModel

T = TypeVar("T")
Prepare = Callable[[Sequence[Row]], Callable[[Told], T]]
"""From rows to their forward, which fails no more for what is wrong with the rows."""
Over = Callable[[Dispatcher[Any]], Dispatcher[Any]]
IN_FLIGHT = 2
"""Batches that are between dispatch and combine while two halves take turns."""


class Overlap:
    """Of one executor, on the thread that computes."""

    def __init__(self, pace: Pace, overs: tuple[Over, Over] = (same, same)) -> None:
        """`overs`: what either half's dispatches go through."""
        self.pace, self._overs = pace, overs
        self._turns = Turns()

    def forwards(self, rows: Sequence[Row], size: Size, prepare: Prepare[T]) -> list[T]:
        """What the forwards of all rows, or of each half, answer; how many there are is the same on all ranks."""
        way = self.way(size, graph=False)
        halves = None if way is Way.WHOLE else split(rows)
        if halves is None:
            whole = prepare(rows)
            return [self.timed(size, lambda: whole(Told(size.prefill, size.most)), halved=False)]
        first, second = prepare(halves.first), prepare(halves.second)
        return self.timed(size, lambda: self.in_turns(size, first, second), halved=True)

    def way(self, size: Size, *, graph: bool) -> Way:
        """How a step runs; `graph`: there is one of halves for it."""
        return decide(size, wanted=self.pace.wants(size), graph=graph)

    def timed(self, size: Size, work: Callable[[], T], *, halved: bool) -> T:
        """What `work` answers, which is a step's forward, or enqueues it."""
        self.pace.begin()
        found = work()
        self.pace.end(size, halved=halved)
        return found

    def in_turns(self, size: Size, first: Callable[[Told], T], second: Callable[[Told], T]) -> list[T]:
        """What both halves answer; nothing is wrong with their rows.

        PeerLost where one of them fails: tokens are under way then that nobody waits for any more.
        """
        most = largest(size.most, prefill=size.prefill)
        one, other = (Told(size.prefill, most, turn=self._turns.turn, over=over) for over in self._overs)
        try:
            return list(self._turns.run(partial(first, one), partial(second, other)))
        except PeerLost:
            raise
        except Exception as error:
            raise PeerLost(
                f"a half of a step ended while tokens were on their way to experts ({type(error).__name__}: {error})"
            ) from error


def overlap_of(
    setting: Literal["off", "auto"] | int,
    model: PagedModel,
    watch: Watch[Any],
    log: logging.Logger,
    least: Callable[[int], int] | None = None,
    overs: tuple[Over, Over] = (same, same),
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
        return Overlap(From(setting), overs)

    def say(choice: str) -> None:
        if not model.group.rank:
            log.info("overlap: %s", choice)

    return Overlap(Measured(least or (lambda own: model.group.least(own)[0]), watch, say), overs)


def _lacking(model: PagedModel) -> str | None:
    if model.experts is None:
        return "this model has no experts that are dispatched"
    if model.experts.in_flight < IN_FLIGHT:
        return f"its dispatcher takes {model.experts.in_flight} batch at a time"
    return None
