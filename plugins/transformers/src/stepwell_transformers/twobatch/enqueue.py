"""Steps on a CUDA device as two halves: enqueued in turn on one stream, or replayed from one graph.

The host enqueues a half up to its turn, then the other's work up to there. What waits, on the device, are exchanges on
a stream of their own beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stepwell import Row
from stepwell_transformers.twobatch.decide import Size, Way
from stepwell_transformers.twobatch.split import split

if TYPE_CHECKING:
    from stepwell_transformers.cuda.compute import Compute, Computed
    from stepwell_transformers.cuda.lanes import Lane
    from stepwell_transformers.cuda.lineup import Lineup
    from stepwell_transformers.cuda.transfers import Copying
    from stepwell_transformers.twobatch.graphs import HalvedGraphs
    from stepwell_transformers.twobatch.overlap import Overlap


@dataclass(frozen=True, slots=True)
class Joined:
    """What two halves left on the device, one behind the other; as Computed is for one batch."""

    logits: torch.Tensor
    slots: torch.Tensor
    first: int
    """Rows of the step that are the first half's alone."""
    room: int
    """Rows that the first half takes here, with padding and the part of a row that is cut."""
    tokens: torch.Tensor | None = None

    def place(self, row: int, decodes: int) -> int:
        """Where a row of the line-up is."""
        return row if row < self.first else row - self.first + self.room


class InHalves:
    """What runs the steps of an executor, some of them as two halves."""

    def __init__(self, overlap: Overlap, compute: Compute, graphs: HalvedGraphs | None) -> None:
        self.overlap, self._graphs = overlap, graphs
        self._computes = compute, compute.twin()

    def run(
        self, lineup: Lineup, size: Size, loading: Copying, lane: Lane, whole: Callable[[], Computed | Joined]
    ) -> Computed | Joined:
        """Enqueue a step of that size in `lane`; `whole` does so as one batch."""
        halves = split(lineup.rows)
        graph = halves is not None and not loading.marks and self._graphs is not None and self._graphs.fits(halves)
        way = self.overlap.way(size, graph=graph)
        if way is Way.WHOLE or halves is None:
            return self.overlap.timed(size, whole, halved=False)
        if way is Way.GRAPH and self._graphs is not None:
            graphs = self._graphs
            return self.overlap.timed(size, lambda: graphs.replay(halves), halved=True)
        rows = halves.first, halves.second
        first = len(halves.first) - halves.cut

        def hold(layer: int) -> None:
            loading.hold(lane, layer)

        return self.overlap.timed(size, lambda: self._enqueued(size, rows, first, hold), halved=True)

    def _enqueued(self, size: Size, halves: Sequence[Sequence[Row]], first: int, hold: Callable[[int], None]) -> Joined:
        from stepwell_transformers.cuda.lineup import line_up

        one, other = (
            compute.prepare(line_up(rows), hold) for compute, rows in zip(self._computes, halves, strict=True)
        )
        found = self.overlap.in_turns(size, one, other)
        logits, slots = (torch.cat(parts) for parts in zip(*((half.logits, half.slots) for half in found), strict=True))
        return Joined(logits, slots, first, len(halves[0]))
