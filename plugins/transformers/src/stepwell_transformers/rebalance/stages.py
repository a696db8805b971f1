"""Weights of experts on their way: from other ranks, or from slots that change, to where they wait for their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from stepwell_kernels.collective import Group
from stepwell_transformers.balance import Copy, LayerMoves

Weights = Callable[[int, int], Sequence[torch.Tensor]]
"""Of a layer and a slot of this rank: what the expert there consists of, in place."""


class Beside(Protocol):
    """Where copies are enqueued that go on beside the steps."""

    def __call__(self) -> AbstractContextManager[object]:
        """Ends once all that was enqueued within is done."""


def at_once() -> AbstractContextManager[object]:
    """On a device whose copies are done when their call returns."""
    return nullcontext()


class Stages:
    """The moves of one layer, as one rank does its part in them."""

    def __init__(self, moves: LayerMoves, rank: int, weights: Weights) -> None:
        self._moves, self._rank, self._weights = moves, rank, weights
        self._staged: dict[int, list[torch.Tensor]] = {}

    def fill(self, group: Group, beside: Beside) -> None:
        """Send what others need of this rank and fetch what it needs of them; all ranks together, beside the steps.

        `group` moves host memory. What is read is in use meanwhile, and is not changed before `put`.
        """
        with beside():
            for copy in self._moves.staged(self._rank):
                if self._home(copy.source) == self._rank:
                    self._stage(copy, [part.clone() for part in self._own(copy.source)])
        leaving = [copy for source, _, copy in self._moves.between() if source == self._rank]
        arriving = [copy for _, target, copy in self._moves.between() if target == self._rank]
        leaving.sort(key=lambda copy: self._home(copy.target))
        arriving.sort(key=lambda copy: self._home(copy.source))
        sent = self._rows(len(leaving))
        with beside():
            for row, copy in zip(sent, leaving, strict=True):
                for place, part in zip(self._parts(row), self._own(copy.source), strict=True):
                    place.copy_(part, non_blocking=True)
        got = self._rows(len(arriving))
        arrive, leave = ([0] * group.size for _ in range(2))
        for copy in arriving:
            arrive[self._home(copy.source)] += 1
        for copy in leaving:
            leave[self._home(copy.target)] += 1
        group.all_to_all(got, sent, arrive, leave).wait()
        with beside():
            for row, copy in zip(got, arriving, strict=True):
                device = self._own(copy.target)[0].device
                self._stage(copy, [part.to(device, non_blocking=True) for part in self._parts(row)])

    def put(self) -> int:
        """Everything into its slot, on the stream that computes; how many bytes that were."""
        moved = 0
        for copy in self._moves.of(self._rank):
            source = self._own(copy.source) if copy.stage is None else self._staged.pop(copy.stage)
            for place, part in zip(self._own(copy.target), source, strict=True):
                place.copy_(part)
                moved += part.nbytes
        return moved

    def _stage(self, copy: Copy, parts: list[torch.Tensor]) -> None:
        assert copy.stage is not None
        self._staged[copy.stage] = parts

    def _home(self, slot: int) -> int:
        return slot // self._moves.slots_per_rank

    def _own(self, slot: int) -> Sequence[torch.Tensor]:
        return self._weights(self._moves.layer, slot % self._moves.slots_per_rank)

    def _rows(self, count: int) -> torch.Tensor:
        """Host memory for so many experts."""
        model = self._weights(self._moves.layer, 0)
        nbytes = sum(part.nbytes for part in model)
        return torch.empty((count, nbytes), dtype=torch.uint8, pin_memory=model[0].device.type == "cuda")

    def _parts(self, row: torch.Tensor) -> list[torch.Tensor]:
        """A row of host memory as the tensors of an expert."""
        model = self._weights(self._moves.layer, 0)
        pieces = row.split([part.nbytes for part in model])
        return [piece.view(part.dtype).view(part.shape) for piece, part in zip(pieces, model, strict=True)]
