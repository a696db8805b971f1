"""The routed experts of a model, spread over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stepwell import ConfigError, Exchange, Traffic
from stepwell_kernels.collective import Group
from stepwell_transformers.experts.asked import Asked
from stepwell_transformers.experts.dispatchers import Dispatchers
from stepwell_transformers.experts.forward import RUNNING, Forward
from stepwell_transformers.experts.found import Routed, routed, top_k
from stepwell_transformers.experts.layer import NAME, ExpertLayer
from stepwell_transformers.experts.map import SlotMap
from stepwell_transformers.experts.share import Share
from stepwell_transformers.experts.shared import Shared, shared_of
from stepwell_transformers.experts.slots import Row, first_row
from stepwell_transformers.experts.told import Told

DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
TRIED = 4
"""Tokens on which a block is tried out."""


class Experts:
    """Layers with experts are numbered from 0 here, whatever other layers there are.

    Called from the thread that computes steps. What is written between two steps holds from the next on.
    """

    def __init__(self, model: Any, asked: Asked, group: Group) -> None:
        """Of a model that was cut as `asked` says; all ranks of `group` have the same tokens. Meets the others.

        ConfigError where a dispatcher cannot be had.
        """
        found = routed(model, asked.name)
        if model.dtype not in DTYPES:
            raise ConfigError(f"runner.dtype: tokens in {model.dtype} are not dispatched; use bfloat16 or float32")
        self._model, self._asked, self._group, self._share = model, asked, group, Share(group)
        self.local = found[0].count
        """Slots of this rank."""
        self.slots = self.local * asked.place.world
        self.experts = self.slots - asked.settings.spare
        self.top_k = top_k(found[0], self.experts, model.config, asked.name)
        self._dispatchers = self._opened(found[0].hidden)
        row = first_row(self.experts, asked.settings.spare)
        self.layers = [
            ExpertLayer(layer, SlotMap(row, self.experts, model.device), self._share, self._of_batch) for layer in found
        ]
        self._blocks = [layer.block for layer in found]
        self._counts: torch.Tensor | None = None
        self._take_over(found)

    def _opened(self, hidden: int) -> Dispatchers:
        asked, most = self._asked, self._share.most
        tokens = most(max(asked.tokens, asked.decodes))
        dispatchers = Dispatchers(asked.normal, asked.decode, asked.place)
        try:
            dispatchers.open(
                Traffic(self.slots, self.top_k, hidden, DTYPES[self._model.dtype], tokens), most(asked.decodes)
            )
        except ConfigError:
            dispatchers.close()
            raise
        return dispatchers

    def _take_over(self, found: Sequence[Routed]) -> None:
        self._model.set_experts_implementation(NAME)
        other = next((layer for layer in found if layer.module.config._experts_implementation != NAME), None)
        if other is not None:
            self.close()
            raise ConfigError(
                f"runner.dispatch: {self._asked.name} does not let its experts be replaced "
                f"({type(other.module).__name__}): use 'off'"
            )

    def overlap_shared(self) -> None:
        """Compute shared experts beside dispatches where that changes no bit. After their forwards were fused."""
        model = self._model
        noise = torch.randn((1, TRIED, model.config.hidden_size), generator=torch.Generator().manual_seed(0))
        x = noise.to(model.device, model.dtype)
        for layer, block in zip(self.layers, self._blocks, strict=True):
            if (module := shared_of(block)) is not None:
                layer.shared = Shared(module)
                good = layer.shared.tried(block, x, self.running(Told(), TRIED))
                layer.shared.trusted = bool(self._group.least(int(good))[0])

    @contextmanager
    def own(self) -> Iterator[None]:
        """By the library's own code, where one rank has all experts in their places; else as ever."""
        alone = self._asked.place.world == 1 and all(
            np.array_equal(layer.slots.row[: self.experts], np.arange(self.experts)) for layer in self.layers
        )
        if alone:
            self._model.set_experts_implementation("eager")
        try:
            yield
        finally:
            self._model.set_experts_implementation(NAME)

    def close(self) -> None:
        """Leave the others. Idempotent."""
        self._dispatchers.close()

    # --- forwards ------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, told: Told, tokens: int) -> Iterator[None]:
        """A forward over so many tokens, in this thread or greenlet."""
        before = RUNNING.set(self._forward(told, tokens, shares=True))
        try:
            yield
        finally:
            RUNNING.reset(before)

    def idle(self, told: Told) -> None:
        """Take part in a step of other groups, of which `told.most` says how large it is."""
        forward = self._forward(told, 0, shares=False)
        for layer in self.layers:
            layer.rest(forward, self.top_k)

    def _of_batch(self, tokens: int) -> Forward:
        return RUNNING.get() or self._forward(Told(), tokens, shares=False)

    def _forward(self, told: Told, tokens: int, *, shares: bool) -> Forward:
        most = self._share.most(tokens if told.most is None else told.most)
        dispatcher, room = self._dispatchers.pick(Exchange(most, told.prefill))
        return Forward(told, told.over(dispatcher), room, max(1, -(-most // room)), shares)

    @property
    def in_flight(self) -> int:
        """Forwards that may be between a dispatch and its combine at once."""
        return self._dispatchers.in_flight

    def captures(self, decodes: int) -> bool:
        """Whether a step of so many tokens, decodes all, may be captured in a graph."""
        return self._dispatchers.captures(Exchange(self._share.most(decodes), prefill=False))

    # --- placement -----------------------------------------------------------------------------------------------

    @property
    def placement(self) -> Row:
        """[layers, slots]: the expert in each."""
        return np.stack([layer.slots.row for layer in self.layers])

    def place(self, layer: int, row: Row) -> None:
        """From the next step on, tokens of a layer go where `row` [slots] says that its experts stand."""
        self.layers[layer].slots.write(row)

    def weights_of(self, layer: int, slot: int) -> list[torch.Tensor]:
        """What the expert in a slot of this rank consists of, in place: in one order on every rank."""
        return self.layers[layer].weights_of(slot)

    # --- counts --------------------------------------------------------------------------------------------------

    def record(self) -> None:
        """Count tokens of each expert from here on; before graphs are captured."""
        self._counts = torch.zeros((len(self.layers), self.experts), dtype=torch.int64, device=self._model.device)
        for layer, counts in zip(self.layers, self._counts, strict=True):
            layer.counts = counts

    def drain_counts(self) -> torch.Tensor:
        """[layers, experts], int64: real tokens that this group's batches gave to each since it was last asked."""
        assert self._counts is not None
        found = self._counts.clone()
        self._counts.zero_()
        return found

    # --- for people ----------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """What became of the model's experts."""
        names = self._dispatchers
        beside = sum(layer.shared is not None and layer.shared.trusted for layer in self.layers)
        yield (
            f"{self.experts} experts of {len(self.layers)} layers stand in {self.slots} slots, {self.local} a rank; "
            f"their tokens go through {names.said()}"
        )
        if any(layer.shared is not None for layer in self.layers):
            yield f"shared experts of {beside} layers are computed beside that"

    def tight(self, chunk: int, rows: int) -> Iterator[str]:
        """What the largest steps, of so many tokens of prompts and so many requests, have too many of."""
        for setting, tokens, kind in (("dispatch", chunk + rows, "a step"), ("decode_dispatch", rows, "a decode step")):
            room, most = self._dispatchers.room(setting), self._share.most(tokens)
            if 0 < room < most:
                what = f"goes in {-(-most // room)} rounds" if setting == "dispatch" else "goes as prompts do"
                name = self._dispatchers.named(setting)
                yield (
                    f"runner.{setting}: {name!r} takes {room} tokens of a rank at once, and {kind} may have {most}: "
                    f"a larger one {what}"
                )
