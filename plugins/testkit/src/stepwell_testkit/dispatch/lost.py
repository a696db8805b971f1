"""A rank that is gone or silent is noticed in time, and from then on by every call."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import Dispatcher, PeerLost
from stepwell_testkit.dispatch.base import DispatchBase, Ranks
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.dispatch.passage import Passage, Scene


class Lost(DispatchBase):
    """Nobody waits for ever."""

    @pytest.mark.parametrize("steps", [0, 2])
    @pytest.mark.parametrize("closes", [False, True], ids=["silent", "closed"])
    def test_a_rank_that_stays_away_is_noticed(self, ranks: Ranks, steps: int, closes: bool) -> None:
        """Before a dispatch, and between it and its combine."""
        self._need_others(ranks)
        batch = self.batch(20, [min(4, ranks.most)] * ranks.count)
        self.check(ranks, batch)
        ranks.run(StaysAway(ranks.scene, batch, steps, closes, self.lost_s))

    def test_a_rank_that_was_killed_is_noticed(self, ranks: Ranks) -> None:
        self._need_others(ranks)
        batch = self.batch(22, [min(4, ranks.most)] * ranks.count)
        self.check(ranks, batch)
        ranks.kill(ranks.count - 1)
        ranks.run(StaysAway(ranks.scene, batch, 0, False, self.lost_s))

    def test_a_rank_that_comes_too_late_is_told(self, ranks: Ranks) -> None:
        self._need_others(ranks)
        batch = self.batch(21, [min(4, ranks.most)] * ranks.count)
        ranks.run(StaysAway(ranks.scene, batch, 0, False, self.lost_s))
        ranks.run(ComesLate(ranks.scene, batch, self.lost_s))

    def _need_others(self, ranks: Ranks) -> None:
        if not self.notices_lost:
            pytest.skip("only the device notices")
        if ranks.count == 1:
            pytest.skip("one rank loses nobody")


@dataclass(frozen=True)
class StaysAway:
    """One rank's part of a batch for which the last rank takes the first few steps only."""

    scene: Scene
    batch: Batch
    steps: int
    closes: bool
    limit_s: float

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> None:
        passage = Passage(self.scene, dispatcher, rank, self.batch)
        for _ in range(self.steps):
            passage.step()
        if rank < self.scene.ranks - 1:
            _is_lost(passage, self.limit_s, "waiting for a rank that stays away")
            with pytest.raises(PeerLost):
                Passage(self.scene, dispatcher, rank, self.batch).step()
        elif self.closes:
            dispatcher.close()


@dataclass(frozen=True)
class ComesLate:
    """The last rank's part of a batch that the others have given up."""

    scene: Scene
    batch: Batch
    limit_s: float

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> None:
        if rank == self.scene.ranks - 1:
            _is_lost(Passage(self.scene, dispatcher, rank, self.batch), self.limit_s, "coming too late")


def _is_lost(passage: Passage, limit_s: float, what: str) -> None:
    start = time.monotonic()
    with pytest.raises(PeerLost):
        passage.rest()
        passage.sums()
    took = time.monotonic() - start
    assert took < limit_s, f"{what} took {took:.1f} s"
