"""A dispatcher made as slow as a network: for measuring, on machines without one, what hides behind computation.

Each direction takes at least as long as the bytes of this rank's tokens that other ranks have to get would take at a
given rate, counted from its start; what was started before has to be through first, as on a link. The waiting takes no
part in the computing: the host sleeps in a finish, or one block of a CUDA device counts time on a stream of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stepwell import Dispatched, Dispatcher, Format, Traffic
from stepwell_kernels.dispatch.permute import to_ranks
from stepwell_kernels.dispatch.wire import Rows


class Link(Protocol):
    """What takes its time."""

    def begin(self, rows: torch.Tensor) -> Callable[[], None]:
        """So many rows set out now, int64 []; what waits until they are there."""


@dataclass(frozen=True, slots=True)
class _Under:
    """A batch under way: the inner one's handle, its rows, and what waits for its last direction."""

    inner: Any
    rows: torch.Tensor
    wait: Callable[[], None]


class Slowed(Dispatcher[torch.Tensor]):
    """See the module. What it dispatches is as the inner one has it."""

    def __init__(
        self, inner: Dispatcher[torch.Tensor], rank: int, world: int, gb_per_s: float, latency_us: float
    ) -> None:
        self._inner, self._rank, self._world = inner, rank, world
        self._gb_per_s, self._latency_us = gb_per_s, latency_us
        self._link: Link | None = None
        self.format, self.in_flight = inner.format, inner.in_flight

    def open(self, traffic: Traffic) -> None:
        self._inner.open(traffic)
        self.capacity = self._inner.capacity
        rows = Rows.of("slowed", traffic)
        self._ns_a_row = rows.hidden * rows.dtype.itemsize / self._gb_per_s
        self._share = traffic.experts // self._world

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> _Under:
        rows = self._leaving(experts)
        wait = self._on(tokens.device).begin(rows)
        return _Under(self._inner.dispatch_start(tokens, experts, weights), rows, wait)

    def dispatch_finish(self, handle: _Under) -> Dispatched[torch.Tensor]:
        got = self._inner.dispatch_finish(handle.inner)
        handle.wait()
        state = _Under(got, handle.rows, handle.wait)
        return Dispatched(got.tokens, got.counts, state, got.experts, got.weights, got.scales, got.rows)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> _Under:
        under: _Under = dispatched.state
        wait = self._on(outputs.device).begin(under.rows)
        return _Under(self._inner.combine_start(outputs, under.inner), under.rows, wait)

    def combine_finish(self, handle: _Under) -> torch.Tensor:
        sums = self._inner.combine_finish(handle.inner)
        handle.wait()
        return sums

    def close(self) -> None:
        self._inner.close()

    def _leaving(self, experts: torch.Tensor) -> torch.Tensor:
        """Rows for other ranks, each once or for each expert, as the inner one sends them."""
        sizes = to_ranks(experts, self._world, self._share).sizes
        rows = sizes[:, 0] if self.format is Format.ONCE else sizes[:, 1:].sum(1)
        return rows.sum() - rows[self._rank]

    def _on(self, device: torch.device) -> Link:
        if self._link is None:
            if device.type == "cuda":
                from stepwell_kernels.dispatch.device.link import DeviceLink

                self._link = DeviceLink(device, self._ns_a_row, 1000 * self._latency_us)
            else:
                self._link = HostLink(self._ns_a_row, 1000 * self._latency_us)
        return self._link


class HostLink:
    """By the clock of the host."""

    def __init__(self, ns_a_row: float, latency_ns: float) -> None:
        self._ns_a_row, self._latency_ns = ns_a_row, latency_ns
        self._free = 0.0

    def begin(self, rows: torch.Tensor) -> Callable[[], None]:
        self._free = max(time.perf_counter(), self._free) + 1e-9 * self._ns_a_row * int(rows)
        ends = self._free + 1e-9 * self._latency_ns
        return lambda: time.sleep(max(ends - time.perf_counter(), 0.0))
