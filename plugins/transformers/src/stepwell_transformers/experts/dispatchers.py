"""What sends tokens to experts: one dispatcher for steps with prompts, maybe another for decodes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from stepwell import Capability, ConfigError, Context, Dispatcher, Exchange, Part, Traffic
from stepwell_kernels.dispatch.apart import Apart

T = TypeVar("T")
Choice = Part[Dispatcher[Any]]


class Dispatchers:
    """Opened together, picked from once a step, closed together."""

    def __init__(self, normal: Choice, decode: Choice | None, place: Context) -> None:
        """ConfigError where one cannot be had. `decode`: None for the same."""
        self._parts = {"dispatch": normal} if decode is None else {"dispatch": normal, "decode_dispatch": decode}
        self._made: dict[str, Dispatcher[torch.Tensor]] = {}
        self._most: dict[str, int] = {}
        for setting, part in self._parts.items():
            self._made[setting] = self._blamed(setting, partial(part.make, Apart(place, setting)))

    def open(self, traffic: Traffic, decodes: int) -> None:
        """`traffic` is the largest of any step; one of decodes alone is expected to have `decodes` tokens a rank."""
        for setting, dispatcher in self._made.items():
            own = traffic if setting == "dispatch" else replace(traffic, max_tokens=min(decodes, traffic.max_tokens))
            self._most[setting] = own.max_tokens
            self._blamed(setting, partial(dispatcher.open, own))

    @property
    def in_flight(self) -> int:
        """Batches that may be between dispatch and combine at once, whatever their steps are."""
        return min(dispatcher.in_flight for dispatcher in self._made.values())

    def setting(self, exchange: Exchange) -> str:
        """Which of them does a step: more decodes than fit at once go as prompts do."""
        small = not exchange.prefill and exchange.tokens <= self.room("decode_dispatch")
        return "decode_dispatch" if small else "dispatch"

    def pick(self, exchange: Exchange) -> tuple[Dispatcher[torch.Tensor], int]:
        """What does a step's dispatches, and how many tokens it takes of a rank at once."""
        setting = self.setting(exchange)
        picked = self._made[setting].pick(exchange)
        return picked, self._most[setting] if picked.capacity is None else picked.capacity

    def room(self, setting: str) -> int:
        """Tokens that one of them takes of a rank at once; 0: it is not there."""
        if setting not in self._made:
            return 0
        capacity = self._made[setting].capacity
        return self._most[setting] if capacity is None else capacity

    def captures(self, exchange: Exchange) -> bool:
        """Whether a step may be captured in a graph."""
        return Capability.GRAPH_SAFE in self._parts[self.setting(exchange)].provides

    def named(self, setting: str) -> str:
        """What the config calls it."""
        return self._parts[setting].offer.name

    def said(self) -> str:
        """Which of them does what, for people."""
        names = [f"{self.named(setting)!r}" for setting in self._made]
        return " and, of decodes alone, ".join(names)

    def close(self) -> None:
        """Idempotent."""
        for dispatcher in self._made.values():
            dispatcher.close()

    def _blamed(self, setting: str, work: Callable[[], T]) -> T:
        """What fails within is the dispatcher's: one sentence that says what to do."""
        try:
            return work()
        except ConfigError:
            raise
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"runner.{setting}: {self.named(setting)!r} does not work here ({type(error).__name__}: {said}); "
                "use 'off' or another"
            ) from error
