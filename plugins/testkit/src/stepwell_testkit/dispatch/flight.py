"""As many batches under way at once as a dispatcher says, in any order of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from stepwell import Dispatcher
from stepwell_testkit.dispatch.base import ALONE, DispatchBase, Ranks, Through
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.dispatch.passage import STEPS, Passage, Scene
from stepwell_testkit.world import Array

PAIRS = tuple(tuple(int(at in second) for at in range(2 * STEPS)) for second in combinations(range(2 * STEPS), STEPS))
"""Every order in which two batches, 0 and 1, can go through their four steps."""


class Flight(DispatchBase):
    """Batches that do not meddle with each other."""

    def test_b118_batches_in_flight_keep_apart(self, ranks: Ranks) -> None:
        """Every order of the two halves of two-batch overlap, where two may be under way."""
        batches = self._batches(ranks, min(ranks.in_flight, 4))
        orders = _orders(len(batches), self.orders)
        self.judge(batches, ranks.run(Through(ranks.scene, batches, orders)), orders)

    def test_sums_are_the_same_bits_whatever_else_is_in_flight(self, ranks: Ranks) -> None:
        batches = self._batches(ranks, min(ranks.in_flight, 2))
        orders = _orders(len(batches), self.orders)
        for rank, answers in enumerate(ranks.run(Through(ranks.scene, batches, orders))):
            first = answers[0]
            for order, sums in zip(orders, answers, strict=True):
                same = all(np.array_equal(one, other) for one, other in zip(sums, first, strict=True))
                assert same, f"rank {rank}, steps {order}: other bits than one batch after the other"

    @pytest.mark.parametrize("who", ["all ranks", "one rank"])
    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_b118_one_batch_too_many_is_refused_at_once(self, ranks: Ranks, steps: int, who: str) -> None:
        batches = self._batches(ranks, ranks.in_flight + 1)
        answers = ranks.run(TooMany(ranks.scene, batches, steps, only_first=who == "one rank"))
        self.judge(batches, [[sums] for sums in answers], [f"{steps} of each, then one too many"])

    def _batches(self, ranks: Ranks, count: int) -> list[Batch]:
        sizes = [min(6, ranks.most), min(3, ranks.most)]
        return [self.batch(14 + at, [sizes[at % 2]] * ranks.count) for at in range(count)]


def _orders(batches: int, most: int) -> list[Sequence[int]]:
    """Orders of the steps of so many batches, one after the other first; of more than two, some."""
    if batches < 2:
        return [ALONE, ALONE]
    if batches == 2:
        return list(PAIRS[:: -(-len(PAIRS) // most)])
    dice = np.random.default_rng(batches)
    steps = np.repeat(np.arange(batches), STEPS)
    return [steps.tolist(), *(dice.permutation(steps).tolist() for _ in range(most - 1))]


@dataclass(frozen=True)
class TooMany:
    """One rank's part: bring as many batches so far as may be under way, try one more, finish them, then that one."""

    scene: Scene
    batches: Sequence[Batch]
    steps: int
    only_first: bool

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> list[Array]:
        passages = [Passage(self.scene, dispatcher, rank, batch) for batch in self.batches]
        for passage in passages[:-1]:
            for _ in range(self.steps):
                passage.step()
        if rank == 0 or not self.only_first:
            with pytest.raises(RuntimeError):
                Passage(self.scene, dispatcher, rank, self.batches[-1]).step()
        for passage in passages:
            passage.rest()
        return [passage.sums() for passage in passages]
