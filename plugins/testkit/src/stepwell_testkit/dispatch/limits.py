"""A full batch fits, one token more is refused before anything is sent, and the last call closes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import Dispatcher
from stepwell_testkit.dispatch.base import DispatchBase, Ranks, closed
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.dispatch.passage import Passage, Scene
from stepwell_testkit.world import Array


class Limits(DispatchBase):
    """As many as agreed, and no more."""

    def test_b113_a_full_batch_and_one_token_less(self, ranks: Ranks) -> None:
        for size in (ranks.most, ranks.most - 1, 1, 0):
            self.check(ranks, self.batch(2, [size] * ranks.count))

    @pytest.mark.parametrize("who", ["all ranks", "one rank"])
    def test_b113_a_token_too_many_is_refused_before_anything_is_sent(self, ranks: Ranks, who: str) -> None:
        large = self.batch(12, [ranks.limit + 1] * ranks.count)
        small = self.batch(13, [ranks.most] * ranks.count)
        answers = ranks.run(TooLarge(ranks.scene, large, small, ranks.limit, only_first=who == "one rank"))
        self.judge([small], [[[sums]] for sums in answers], ["after a batch that was too large"])

    def test_close_is_idempotent_and_waits_for_nobody(self, ranks: Ranks) -> None:
        self.check(ranks, self.batch(0, [min(4, ranks.most)] * ranks.count))
        for rank in range(ranks.count):
            ranks.run(CloseOne(rank))
        ranks.run(closed)

    def test_what_was_never_opened_closes(self, unopened: Ranks) -> None:
        unopened.run(closed)


@dataclass(frozen=True)
class TooLarge:
    """One rank's part: a batch that has to be refused, then one that fits."""

    scene: Scene
    large: Batch
    small: Batch
    limit: int
    only_first: bool

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> Array:
        if rank == 0 or not self.only_first:
            with pytest.raises(ValueError) as caught:
                Passage(self.scene, dispatcher, rank, self.large).step()
            for number in (self.limit, self.limit + 1):
                assert str(number) in str(caught.value), f"{number} is missing in: {caught.value}"
        passage = Passage(self.scene, dispatcher, rank, self.small)
        passage.rest()
        return passage.sums()


@dataclass(frozen=True)
class CloseOne:
    """Close one rank; the others do nothing meanwhile."""

    rank: int

    def __call__(self, dispatcher: Dispatcher[Any], rank: int) -> None:
        if rank == self.rank:
            dispatcher.close()
