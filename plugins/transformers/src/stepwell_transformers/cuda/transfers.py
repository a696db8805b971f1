"""Copies between host and device beside the computation: loads layer by layer ahead of it, saves behind it.

A load starts as soon as its plan is here, also while the step before runs: its pages have no reader left. A save waits
for the steps that wrote its pages, and no step waits for it. A plan's copies of one group go together: few large
launches fill a link that many small ones do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from stepwell import PageCopy
from stepwell_kernels.transfer.mover import Mover, Pairs
from stepwell_transformers.cuda.lanes import Lane, Lanes, Mark
from stepwell_transformers.paging import Seat


@dataclass(frozen=True, slots=True)
class Bundle:
    """Copies of one group, which go together."""

    group: int
    copies: Sequence[PageCopy]
    pairs: Pairs


@dataclass(slots=True)
class Copying:
    """Copies under way; keeps what they read until they have ended."""

    copies: Sequence[PageCopy]
    good: list[Bundle] = field(default_factory=list)
    """Those that have not failed."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """By layer, behind what is loaded into it."""
    end: Mark | None = None
    """Behind all of them."""

    def results(self, *, ended: bool = True) -> dict[int, tuple[bool, ...]]:
        """Which pages were copied, by copy, once all have ended; none of them where they did not end well."""
        good = {copy.id for bundle in self.good for copy in bundle.copies} if ended else set()
        return {copy.id: (copy.id in good,) * len(copy.device) for copy in self.copies}

    def hold(self, lane: Lane, layer: int) -> None:
        """Let a lane wait for what is loaded into a layer, and for nothing else."""
        if (mark := self.marks.get(layer)) is not None:
            lane.follow(mark)

    def hold_all(self, lane: Lane) -> None:
        """Let a lane wait for the end of all."""
        if self.end is not None:
            lane.follow(self.end)


class Transfers:
    """The copies of an executor. A fault in some costs their pages and nothing else."""

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
                own = [bundle for bundle in loading.good if bundle.group == seat.group]
                for bundle in own:
                    self._move(loading, bundle, partial(_load_layer, seat.index))
                if own:
                    loading.marks[layer] = self._loads.mark(self._gates.get(layer))
            loading.end = self._loads.mark()
        return loading

    def save(self, copies: Sequence[PageCopy], behind: Mark) -> tuple[Copying, Mark]:
        """Start saves behind the steps that wrote their pages; the mark is behind them."""
        saving = Copying(copies)
        self._saves.follow(behind)
        with self._saves.enqueue():
            self._begin(saving)
            for bundle in list(saving.good):
                self._move(saving, bundle, _save)
            return saving, self._saves.mark()

    def failed(self, copying: Copying, error: Exception) -> None:
        """Copies that were started did not end well."""
        self._warn(copying.copies, error)

    def _begin(self, copying: Copying) -> None:
        for group in sorted({copy.group for copy in copying.copies}):
            own = [copy for copy in copying.copies if copy.group == group]
            try:
                copying.good.append(self._bundle(group, own))
            except (RuntimeError, IndexError, ValueError):  # which of them it is shows one by one
                self._begin_each(copying, own)

    def _begin_each(self, copying: Copying, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            try:
                copying.good.append(self._bundle(copy.group, [copy]))
            except (RuntimeError, IndexError, ValueError) as error:
                self._warn([copy], error)

    def _bundle(self, group: int, copies: Sequence[PageCopy]) -> Bundle:
        if not self._movers:
            raise RuntimeError("there is no host tier")
        device = np.concatenate([copy.device for copy in copies])
        host = np.concatenate([copy.host for copy in copies])
        return Bundle(group, copies, self._movers[group].pairs(device, host))

    def _move(self, copying: Copying, bundle: Bundle, move: Callable[[Mover, Pairs], None]) -> None:
        try:
            move(self._movers[bundle.group], bundle.pairs)
        except (RuntimeError, IndexError, ValueError) as error:
            copying.good = [good for good in copying.good if good is not bundle]
            self._warn(bundle.copies, error)

    def _warn(self, copies: Sequence[PageCopy], error: Exception) -> None:
        self._log.warning("a copy of %d pages failed: %s", sum(len(copy.device) for copy in copies), error)


def _load_layer(layer: int, mover: Mover, pairs: Pairs) -> None:
    mover.load_layer(layer, pairs)


def _save(mover: Mover, pairs: Pairs) -> None:
    mover.save(pairs)
