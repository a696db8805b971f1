"""One rank's part of a step: ask what does its dispatches, and have it do one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell import Dispatcher, Exchange
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.dispatch.passage import Passage, Scene
from stepwell_testkit.world import Array


@dataclass(frozen=True)
class Picked:
    """Pick, dispatch, combine: the sums."""

    scene: Scene
    exchange: Exchange
    batch: Batch

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> Array:
        chosen = dispatcher.pick(self.exchange)
        assert isinstance(chosen, Dispatcher), f"pick gave {type(chosen).__name__}"
        assert dispatcher.pick(self.exchange) is chosen, "asked again, it picks another"
        room = chosen.capacity
        assert room is None or room >= self.exchange.tokens, f"room for {room}, picked for {self.exchange}"
        passage = Passage(self.scene, chosen, rank, self.batch)
        passage.rest()
        return passage.sums()
