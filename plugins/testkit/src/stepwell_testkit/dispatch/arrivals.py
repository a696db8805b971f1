"""Tokens arrive as the format says: where, how many, and with what beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stepwell import Dispatcher, Format
from stepwell_testkit.dispatch.base import DispatchBase, Ranks
from stepwell_testkit.dispatch.batch import Batch, exact
from stepwell_testkit.dispatch.passage import RUN, Arrived, Passage, Scene
from stepwell_testkit.world import Array


class Arrivals(DispatchBase):
    """Right places."""

    def test_tokens_arrive_as_the_format_says(self, ranks: Ranks) -> None:
        batch = self.batch(9, [ranks.most] * ranks.count)
        for experts in batch.experts:
            experts[::4, -1] = -1
        sent = _Sent.by(batch)
        for rank, arrived in enumerate(ranks.run(Arrival(ranks.scene, batch))):
            first = rank * ranks.scene.own
            self._shapes(arrived, sent.here(first, ranks.scene.own), ranks.scene.own)
            for local in range(ranks.scene.own):
                self._tokens(arrived.of(local), sent.tokens[sent.of(first + local)], f"expert {first + local}")
            if arrived.format is Format.ONCE:
                self._choices(arrived, sent, first, ranks.scene.own)

    def test_counts_are_of_tokens_and_rows_agree_with_them(self, ranks: Ranks) -> None:
        for sizes in ([ranks.most] * ranks.count, [1] + [0] * (ranks.count - 1), [0] * ranks.count):
            batch = self.batch(10, sizes)
            sent = _Sent.by(batch)
            for rank, arrived in enumerate(ranks.run(Arrival(ranks.scene, batch))):
                right = [int(sent.of(rank * ranks.scene.own + local).sum()) for local in range(ranks.scene.own)]
                assert arrived.counts.dtype.kind in "iu", f"counts of {arrived.counts.dtype}"
                assert arrived.counts.tolist() == right, f"rank {rank}: counts {arrived.counts.tolist()} for {right}"
                assert arrived.rows is None or list(arrived.rows) == right, f"rank {rank}: rows {arrived.rows}"

    def test_scales_are_of_each_run_of_numbers(self, ranks: Ranks) -> None:
        """Each run is as exact as the others, however large its neighbours are; a run of zeros stays one."""
        batch = self.batch(11, [ranks.most] * ranks.count)
        if ranks.run(Arrival(ranks.scene, batch))[0].scales is None:
            pytest.skip("tokens arrive without scales")
        sizes = np.where(np.arange(self.hidden // RUN) % 2, 1e-4, 1e4)
        for tokens in batch.tokens:
            tokens[:] = exact(tokens * np.repeat(sizes, RUN))
            tokens[::5, :RUN] = 0
        sent = _Sent.by(batch)
        for rank, arrived in enumerate(ranks.run(Arrival(ranks.scene, batch))):
            for local in range(ranks.scene.own):
                got, right = arrived.of(local), sent.tokens[sent.of(rank * ranks.scene.own + local)]
                alike = np.repeat(sizes, RUN)  # all runs are about 1 then
                self._tokens(got / alike, right / alike, f"expert {rank * ranks.scene.own + local}")

    def _shapes(self, arrived: Arrived, here: int, own: int) -> None:
        tokens, counts = arrived.tokens, arrived.counts
        assert counts.shape == (own,), f"counts of shape {counts.shape} for {own} experts"
        match arrived.format:
            case Format.SORTED:
                assert tokens.shape == (counts.sum(), self.hidden), f"tokens of shape {tokens.shape}"
            case Format.MASKED:
                assert tokens.ndim == 3 and tokens.shape[::2] == (own, self.hidden), f"tokens of shape {tokens.shape}"
                assert counts.max() <= tokens.shape[1], f"counts {counts.tolist()} of {tokens.shape[1]}"
            case Format.ONCE:
                assert tokens.shape == (here, self.hidden), f"tokens of shape {tokens.shape} for {here}"

    def _tokens(self, got: Array, sent: Array, what: str) -> None:
        assert len(got) == len(sent), f"{what} got {len(got)} of {len(sent)} tokens"
        places = self._places(got, sent, what)
        assert len(set(places)) == len(places), f"{what} got a token twice"

    def _places(self, got: Array, sent: Array, what: str) -> list[int]:
        """For each token that arrived, which of those sent it is."""
        apart = np.abs(got[:, None, :] - sent[None, :, :]).max(axis=2)
        room = self.tolerance * np.maximum(1.0, np.abs(sent).max(axis=1, initial=0.0))
        assert (np.nan_to_num(apart, nan=np.inf) <= room).any(axis=1).all(), f"{what} got other tokens than were sent"
        return [int(place) for place in apart.argmin(axis=1)]

    def _choices(self, arrived: Arrived, sent: _Sent, first: int, own: int) -> None:
        experts, weights = arrived.experts, arrived.weights
        assert experts is not None and weights is not None
        shape = (len(arrived.tokens), self.top_k)
        assert experts.shape == weights.shape == shape, f"experts {experts.shape}, weights {weights.shape} for {shape}"
        assert experts.dtype == np.int64 and weights.dtype == np.float32, f"{experts.dtype}, {weights.dtype}"
        for row, place in enumerate(self._places(arrived.tokens, sent.tokens, "a rank")):
            told = {int(e): float(w) for e, w in zip(experts[row], weights[row], strict=True) if e >= 0}
            local = sent.experts[place] - first
            mine = [(int(e), float(w)) for e, w in zip(local, sent.weights[place], strict=True) if 0 <= e < own]
            assert told == dict(mine), f"a token with experts {dict(mine)} arrived with {told}"


@dataclass(frozen=True)
class _Sent:
    """All that the ranks brought, one after the other."""

    tokens: Array
    experts: Array
    weights: Array

    @classmethod
    def by(cls, batch: Batch) -> _Sent:
        return cls(*(np.concatenate(part) for part in (batch.tokens, batch.experts, batch.weights)))

    def of(self, expert: int) -> Array:
        """Which tokens it has."""
        return np.asarray((self.experts == expert).any(axis=1))

    def here(self, first: int, own: int) -> int:
        """How many have any of a rank's experts."""
        return int(((self.experts >= first) & (self.experts < first + own)).any(axis=1).sum())


@dataclass(frozen=True)
class Arrival:
    """One rank's part: a batch, and what of it came here."""

    scene: Scene
    batch: Batch

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> Arrived:
        passage = Passage(self.scene, dispatcher, rank, self.batch)
        passage.rest()
        return passage.arrived
