"""One batch on one rank through its four steps, with experts that each multiply by a number of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell import Dispatched, Dispatcher, Format, Traffic
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.world import Adapter, Array

STEPS = 4
RUN = 128
"""Numbers of a token that share a scale."""


@dataclass(frozen=True)
class Scene:
    """What all ranks have in common."""

    traffic: Traffic
    ranks: int
    adapter: Adapter

    @property
    def own(self) -> int:
        """Experts of a rank."""
        return self.traffic.experts // self.ranks


@dataclass(frozen=True)
class Arrived:
    """What came to a rank, as arrays; `tokens` are multiplied by their scales."""

    format: Format
    tokens: Array
    counts: Array
    rows: tuple[int, ...] | None
    experts: Array | None
    weights: Array | None
    scales: tuple[int, ...] | None
    """Their shape."""

    def of(self, expert: int) -> Array:
        """The tokens of an expert, by its number on this rank."""
        match self.format:
            case Format.SORTED:
                start = int(self.counts[:expert].sum())
                return self.tokens[start : start + int(self.counts[expert])]
            case Format.MASKED:
                return self.tokens[expert, : int(self.counts[expert])]
            case Format.ONCE:
                assert self.experts is not None, "ONCE without experts"
                return np.asarray(self.tokens[(self.experts == expert).any(axis=1)])

    def filled(self) -> Array:
        """The tokens without what may be anything."""
        if self.format is not Format.MASKED:
            return self.tokens
        return np.concatenate([self.of(expert) for expert in range(len(self.counts))])


class Passage:
    """One rank's part of a batch; `step` takes the next of the four steps."""

    def __init__(self, scene: Scene, dispatcher: Dispatcher[Any], rank: int, batch: Batch) -> None:
        self._scene, self._dispatcher, self._rank, self._batch = scene, dispatcher, rank, batch
        self._todo = [self._dispatch_start, self._dispatch_finish, self._combine_start, self._combine_finish]
        self._given: list[Any] = []
        self._handle: Any = None
        self._got: Dispatched[Any] | None = None
        self._arrived: Arrived | None = None
        self._sums: Any = None

    @property
    def arrived(self) -> Arrived:
        """What came here, as it was when its dispatch finished."""
        assert self._arrived is not None
        return self._arrived

    def sums(self) -> Array:
        """What the last step gave, as it is now."""
        return self._scene.adapter.take(self._sums)

    def step(self) -> None:
        """Take the next step."""
        self._todo.pop(0)()

    def rest(self) -> None:
        """Take all the steps that are left."""
        while self._todo:
            self.step()

    def _dispatch_start(self) -> None:
        give, traffic, rank = self._scene.adapter.give, self._scene.traffic, self._rank
        given = [
            give(self._batch.tokens[rank], traffic.dtype),
            give(self._batch.experts[rank], "int64"),
            give(self._batch.weights[rank], "float32"),
        ]
        self._handle = self._dispatcher.dispatch_start(*given)
        self._given = given

    def _dispatch_finish(self) -> None:
        self._got = self._dispatcher.dispatch_finish(self._handle)
        self._arrived = self._read()

    def _combine_start(self) -> None:
        outputs = self._scene.adapter.give(self._outputs(self._read()), self._scene.traffic.dtype)
        assert self._got is not None
        self._handle = self._dispatcher.combine_start(outputs, self._got)
        self._given.append(outputs)

    def _combine_finish(self) -> None:
        before, after = self.arrived.filled(), self._read().filled()
        assert np.array_equal(before, after), "what arrived was changed before its combine had finished"
        self._sums = self._dispatcher.combine_finish(self._handle)
        for tensor in self._given:
            tensor[...] = -1  # the caller's again, and none of it part of the sums

    def _read(self) -> Arrived:
        got, take = self._got, self._scene.adapter.take
        assert got is not None
        tokens = take(got.tokens)
        scales = None if got.scales is None else take(got.scales)
        if scales is not None:
            assert scales.shape == (*tokens.shape[:-1], tokens.shape[-1] // RUN), f"scales of shape {scales.shape}"
            runs = tokens.reshape(*scales.shape, RUN) * scales[..., None]
            tokens = runs.reshape(tokens.shape)
        return Arrived(
            format=self._dispatcher.format,
            tokens=tokens,
            counts=take(got.counts),
            rows=got.rows,
            experts=None if got.experts is None else take(got.experts),
            weights=None if got.weights is None else take(got.weights),
            scales=None if scales is None else scales.shape,
        )

    def _outputs(self, arrived: Arrived) -> Array:
        factors = (self._rank * self._scene.own + np.arange(self._scene.own) + 1).astype(np.float32)
        match arrived.format:
            case Format.SORTED:
                return np.asarray(arrived.tokens * np.repeat(factors, arrived.counts)[:, None], np.float32)
            case Format.MASKED:
                outputs = np.full(arrived.tokens.shape, np.nan, np.float32)  # where it is not filled, of no matter
                for expert, count in enumerate(arrived.counts.tolist()):
                    outputs[expert, :count] = arrived.tokens[expert, :count] * factors[expert]
                return outputs
            case Format.ONCE:
                assert arrived.experts is not None and arrived.weights is not None, "ONCE without experts or weights"
                share = np.where(arrived.experts >= 0, arrived.weights * factors[arrived.experts], 0.0)
                return np.asarray(arrived.tokens * share.sum(axis=1, keepdims=True), np.float32)


def through(
    scene: Scene, dispatcher: Dispatcher[Any], rank: int, batches: Sequence[Batch], order: Sequence[int]
) -> list[Passage]:
    """Take each batch through its steps, in the order that `order` gives."""
    passages = [Passage(scene, dispatcher, rank, batch) for batch in batches]
    for which in order:
        passages[which].step()
    return passages
