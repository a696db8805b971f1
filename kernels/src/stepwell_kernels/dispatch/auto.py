"""Two dispatchers as one: low latency for steps that only decode and fit it, the other for all else."""

from __future__ import annotations

from typing import Any

import torch

from stepwell import Dispatched, Dispatcher, Exchange, Traffic


class Auto(Dispatcher[torch.Tensor]):
    """Who asks it nothing gets the normal one, which takes every batch."""

    def __init__(self, normal: Dispatcher[torch.Tensor], low_latency: Dispatcher[torch.Tensor]) -> None:
        self._normal, self._low_latency = normal, low_latency
        self._room = 0
        self.format = normal.format
        self.in_flight = min(normal.in_flight, low_latency.in_flight)

    def open(self, traffic: Traffic) -> None:
        for one in (self._normal, self._low_latency):
            one.open(traffic)
        self.capacity = self._normal.capacity
        self._room = self._low_latency.capacity or traffic.max_tokens

    def pick(self, exchange: Exchange) -> Dispatcher[torch.Tensor]:
        fits = not exchange.prefill and exchange.tokens <= self._room
        return (self._low_latency if fits else self._normal).pick(exchange)

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Any:
        return self._normal.dispatch_start(tokens, experts, weights)

    def dispatch_finish(self, handle: Any) -> Dispatched[torch.Tensor]:
        return self._normal.dispatch_finish(handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Any:
        return self._normal.combine_start(outputs, dispatched)

    def combine_finish(self, handle: Any) -> torch.Tensor:
        return self._normal.combine_finish(handle)

    def close(self) -> None:
        self._normal.close()
        self._low_latency.close()
