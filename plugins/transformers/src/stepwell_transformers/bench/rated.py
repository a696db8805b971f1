"""A dispatcher whose rate a bench changes between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stepwell import Context, Dispatched, Dispatcher, Exchange, Offer, Part, Traffic
from stepwell.cli.options import read_config
from stepwell_kernels.dispatch.slowed import Slowed

FREE_GB_S = 1e9
"""As good as no link at all."""


class Rated(Dispatcher[torch.Tensor]):
    """Slowed to a rate, which is asked for with every step; all ranks set the same."""

    def __init__(self, inner: Dispatcher[torch.Tensor], context: Context) -> None:
        self._inner, self._ranks = inner, (context.rank, context.world)
        self.format, self.in_flight = inner.format, inner.in_flight

    def open(self, traffic: Traffic) -> None:
        self._inner.open(traffic)
        self._traffic, self.capacity = traffic, self._inner.capacity
        self.set(FREE_GB_S)

    def set(self, gb_per_s: float) -> None:
        """The rate from here on; nothing is under way."""
        self._slowed = Slowed(_Opened(self._inner), *self._ranks, gb_per_s, 0.0)
        self._slowed.open(self._traffic)

    def pick(self, exchange: Exchange) -> Dispatcher[torch.Tensor]:
        return self._slowed

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Any:
        return self._slowed.dispatch_start(tokens, experts, weights)

    def dispatch_finish(self, handle: Any) -> Dispatched[torch.Tensor]:
        return self._slowed.dispatch_finish(handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Any:
        return self._slowed.combine_start(outputs, dispatched)

    def combine_finish(self, handle: Any) -> torch.Tensor:
        return self._slowed.combine_finish(handle)

    def close(self) -> None:
        self._inner.close()


class _Opened(Dispatcher[torch.Tensor]):
    """One that is open already."""

    def __init__(self, inner: Dispatcher[torch.Tensor]) -> None:
        self._inner = inner
        self.format, self.in_flight, self.capacity = inner.format, inner.in_flight, inner.capacity

    def open(self, traffic: Traffic) -> None:
        pass

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Any:
        return self._inner.dispatch_start(tokens, experts, weights)

    def dispatch_finish(self, handle: Any) -> Dispatched[torch.Tensor]:
        return self._inner.dispatch_finish(handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> Any:
        return self._inner.combine_start(outputs, dispatched)

    def combine_finish(self, handle: Any) -> torch.Tensor:
        return self._inner.combine_finish(handle)


def named(name: str, sets: Sequence[str]) -> Part[Dispatcher[Any]]:
    """A dispatcher that something installed here offers, with the settings of `--set bench.NAME.*`. ConfigError."""
    config = read_config(None, sets)
    registry = config.load_plugins()
    part: Part[Dispatcher[Any]] = config.choose_inside("bench", (name,), "dispatch", registry, name)
    return part


def rated(inner: Part[Dispatcher[Any]]) -> tuple[Part[Dispatcher[Any]], list[Rated]]:
    """What a config has in the place of `inner`; and what it made, once it has."""
    made: list[Rated] = []

    def make(settings: object, context: Context) -> Rated:
        made.append(Rated(inner.make(context), context))
        return made[-1]

    return Part(Offer(inner.offer.name, make, type(inner.settings)), inner.settings), made
