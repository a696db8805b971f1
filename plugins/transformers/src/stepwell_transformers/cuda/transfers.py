"""Copies between host and device beside the computation: loads layer by layer ahead of it, saves behind it.

A load starts as soon as its plan is here, also while the step before runs: its pages have no reader left.
A save waits for the steps that wrote its pages, and no step waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell import PageCopy
from stepwell_kernels.transfer.mover import Mover, Pairs
from stepwell_transformers.cuda.lanes import Lane, Lanes, Mark
from stepwell_transformers.paging import Seat


@dataclass(slots=True)
class Copying:
    """Copies under way; keeps what they read until they have ended."""

    copies: Sequence[PageCopy]
    good: dict[int, Pairs] = field(default_factory=dict)
    """Those that have not failed."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """By layer, behind what is loaded into it."""

    def results(self, *, ended: bool = True) -> dict[int, tuple[bool, ...]]:
        """Which pages were copied, by copy, once all have ended; none of them where they did not end well."""
        return {copy.id: (ended and copy.id in self.good,) * len(copy.device) for copy in self.copies}

    def hold(self, lane: Lane, layer: int) -> None:
        """Let a lane wait for what is loaded into a layer, and for nothing else."""
        if (mark := self.marks.get(layer)) is not None:
            lane.follow(mark)

    def hold_all(self, lane: Lane) -> None:
        """Let a lane wait for everything that is loaded: the last mark is behind all the others."""
        if self.marks:
            lane.follow(self.marks[max(self.marks)])


class Transfers:
    """The copies of an executor. A fault in one costs its pages and nothing else."""

    def __init__(self, seats: Mapping[int, Seat], lanes: Lanes, log: logging.Logger) -> None:
        self._seats = sorted(seats.items())
        self._loads, self._saves, self._gates, self._log = lanes.loads, lanes.saves, lanes.gates, log
        self._movers: Sequence[Mover] = ()

    def pin(self, movers: Sequence[Mover]) -> None:
        """One a group, from here on."""
        self._movers = movers

    def load(self, copies: Sequence[PageCopy]) -> Copying:
        """Start loads, layer by layer in the order in which the model reads them."""
        loading = Copying(copies)
        if not copies:
            return loading
        with self._loads.enqueue():
            self._begin(loading)
            for layer, seat in self._seats:
                own = [copy for copy in copies if copy.group == seat.group and copy.id in loading.good]
                for copy in own:
                    self._move(loading, copy, partial(_load_layer, seat.index))
                if own:
                    loading.marks[layer] = self._loads.mark(self._gates.get(layer))
        return loading

    def save(self, copies: Sequence[PageCopy], behind: Mark) -> tuple[Copying, Mark]:
        """Start saves behind the steps that wrote their pages; the mark is behind them."""
        saving = Copying(copies)
        self._saves.follow(behind)
        with self._saves.enqueue():
            self._begin(saving)
            for copy in copies:
                if copy.id in saving.good:
                    self._move(saving, copy, _save)
            return saving, self._saves.mark()

    def failed(self, copying: Copying, error: Exception) -> None:
        """Copies that were started did not end well."""
        self._warn(sum(len(copy.device) for copy in copying.copies), error)

    def _begin(self, copying: Copying) -> None:
        for copy in copying.copies:
            try:
                if not self._movers:
                    raise RuntimeError("there is no host tier")
                copying.good[copy.id] = self._movers[copy.group].pairs(copy.device, copy.host)
            except (RuntimeError, IndexError, ValueError) as error:
                self._warn(len(copy.device), error)

    def _move(self, copying: Copying, copy: PageCopy, move: Callable[[Mover, Pairs], None]) -> None:
        try:
            move(self._movers[copy.group], copying.good[copy.id])
        except (RuntimeError, IndexError, ValueError) as error:
            del copying.good[copy.id]
            self._warn(len(copy.device), error)

    def _warn(self, pages: int, error: Exception) -> None:
        self._log.warning("a copy of %d pages failed: %s", pages, error)


def _load_layer(layer: int, mover: Mover, pairs: Pairs) -> None:
    mover.load_layer(layer, pairs)


def _save(mover: Mover, pairs: Pairs) -> None:
    mover.save(pairs)
