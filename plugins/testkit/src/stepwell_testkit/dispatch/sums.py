"""Every token gets the weighted sum of what its experts make of it, however tokens are spread over experts."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell import Exchange, Format
from stepwell_testkit.dispatch.base import DispatchBase, Ranks
from stepwell_testkit.dispatch.batch import Batch
from stepwell_testkit.dispatch.picking import Picked


class Sums(DispatchBase):
    """Right sums."""

    def test_they_are_dispatchers_that_agree(self, ranks: Ranks) -> None:
        assert all(facts.right_type for facts in ranks.facts)
        assert all(facts == ranks.facts[0] for facts in ranks.facts), f"ranks differ: {ranks.facts}"
        facts = ranks.facts[0]
        assert isinstance(facts.format, Format)
        assert facts.in_flight >= 1
        assert facts.capacity is None or facts.capacity >= 1
        assert self.experts % ranks.count == 0, f"{self.experts} experts do not spread over {ranks.count} ranks"

    @pytest.mark.parametrize("seed", range(4))
    def test_sums_equal_a_plain_loop(self, ranks: Ranks, seed: int) -> None:
        self.check(ranks, self.batch(seed, [ranks.most // (rank + 1) for rank in range(ranks.count)]))

    def test_b114_ranks_without_tokens_take_part(self, ranks: Ranks) -> None:
        for sizes in ([5, 0, 3, 0], [0, 4, 0, 0], [0, 0, 0, 0]):
            self.check(ranks, self.batch(1, [min(sizes[rank % 4], ranks.most) for rank in range(ranks.count)]))

    def test_b119_all_tokens_go_to_one_expert(self, ranks: Ranks) -> None:
        for expert in (0, self.experts - 1):
            for size in (ranks.most, ranks.most - 1):
                batch = self.batch(3, [size] * ranks.count)
                for experts in batch.experts:
                    experts[:] = -1
                    experts[:, 0] = expert
                self.check(ranks, batch)

    def test_b119_all_tokens_go_to_one_rank(self, ranks: Ranks) -> None:
        own = ranks.scene.own
        for chosen in (0, ranks.count - 1):
            batch = self.batch(4, [ranks.most] * ranks.count)
            for experts in batch.experts:
                self._bring_to(experts, chosen * own, own)
            self.check(ranks, batch)

    def test_b119_one_expert_a_token_in_turn(self, ranks: Ranks) -> None:
        batch = self.batch(5, [ranks.most] * ranks.count)
        for experts in batch.experts:
            experts[:] = -1
            experts[:, -1] = np.arange(len(experts)) % self.experts
        self.check(ranks, batch)

    def test_an_expert_of_minus_one_is_nowhere(self, ranks: Ranks) -> None:
        self.check(ranks, self._with_holes(6, ranks))
        batch = self.batch(7, [ranks.most] * ranks.count)
        for experts in batch.experts:
            experts[:] = -1
        self.check(ranks, batch)

    def test_sums_are_the_callers_to_keep(self, ranks: Ranks) -> None:
        """Each size twice, so that what a buffer kept from the batch before would fit."""
        sizes = [[min((seed // 2 * 5 + rank) % 9, ranks.most) for rank in range(ranks.count)] for seed in range(12)]
        self.check(ranks, *(self.batch(seed, each) for seed, each in enumerate(sizes)))

    def test_what_is_picked_for_a_step_does_its_dispatches(self, ranks: Ranks) -> None:
        for tokens, prefill in ((1, False), (ranks.most, False), (ranks.most, True), (0, False), (1, True)):
            batch = self.batch(8, [tokens if rank == 0 else tokens // 2 for rank in range(ranks.count)])
            answers = ranks.run(Picked(ranks.scene, Exchange(tokens, prefill), batch))
            self.judge([batch], [[[sums]] for sums in answers], ["those of what was picked"])

    def _with_holes(self, seed: int, ranks: Ranks) -> Batch:
        batch = self.batch(seed, [ranks.most] * ranks.count)
        for experts in batch.experts:
            experts[::2, 0] = -1
            experts[::3] = -1
        return batch

    def _bring_to(self, experts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], first: int, own: int) -> None:
        """Make all experts of each token ones of [first, first + own), none twice."""
        for row in experts:
            inside = first + row % own
            unique = {expert: at for at, expert in reversed(list(enumerate(inside.tolist())))}
            row[:] = [expert if unique[expert] == at else -1 for at, expert in enumerate(inside.tolist())]
