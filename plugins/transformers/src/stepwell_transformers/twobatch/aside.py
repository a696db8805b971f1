"""A half's exchanges on a stream of their own, beside what is computed.

What is given to the other stream, or comes from it, is kept until each has waited for the other: memory is reused in
the order of the stream that it was made in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stepwell import Dispatched, Dispatcher, Traffic

if TYPE_CHECKING:
    from stepwell_transformers.cuda.lanes import Lane


class Side:
    """The stream of one half's exchanges, of which one is under way at a time."""

    def __init__(self, compute: Lane, lane: Lane) -> None:
        """`compute`: where the halves are computed; nothing else is the current stream when they dispatch."""
        self.compute, self.lane = compute, lane
        self.kept: list[object] = []

    def over(self, dispatcher: Dispatcher[torch.Tensor]) -> Dispatcher[torch.Tensor]:
        """The same dispatcher, on this stream."""
        return Aside(dispatcher, self)

    def fork(self) -> None:
        """What comes on this stream waits for what is computed so far."""
        self.lane.follow(self.compute.mark())

    def join(self) -> None:
        """What is computed from here on waits for this stream."""
        self.compute.follow(self.lane.mark())


class Aside(Dispatcher[torch.Tensor]):
    """Starts behind what is computed so far; a finish lets what is computed next wait for it."""

    def __init__(self, inner: Dispatcher[torch.Tensor], side: Side) -> None:
        self._inner, self._side = inner, side
        self.format, self.in_flight, self.capacity = inner.format, inner.in_flight, inner.capacity

    def open(self, traffic: Traffic) -> None:
        raise RuntimeError("what is opened is the dispatcher itself")

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Any:
        self._side.fork()
        self._side.kept = [tokens, experts, weights]
        with self._side.lane.enqueue():
            return self._inner.dispatch_start(tokens, experts, weights)

    def dispatch_finish(self, handle: Any) -> Dispatched[torch.Tensor]:
        with self._side.lane.enqueue():
            got = self._inner.dispatch_finish(handle)
        self._side.join()
        self._side.kept.append(got)
        return got

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Any:
        self._side.fork()
        self._side.kept.append(outputs)
        with self._side.lane.enqueue():
            return self._inner.combine_start(outputs, dispatched)

    def combine_finish(self, handle: Any) -> torch.Tensor:
        with self._side.lane.enqueue():
            sums = self._inner.combine_finish(handle)
        self._side.join()
        self._side.kept.append(sums)
        return sums
