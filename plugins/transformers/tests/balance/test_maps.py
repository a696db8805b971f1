"""Which replica a token goes to."""

import numpy as np
import pytest

from stepwell import ConfigError
from stepwell_transformers.balance import check_rule, choices


def test_b098_tokens_of_an_expert_spread_over_its_replicas():
    before, after = np.arange(12) % 8, np.array([0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 1])
    ids = np.zeros((200, 1), np.int64)
    for first in range(7):
        by_rank = np.bincount(choices(after, 8, 4, 0, "even").slots(ids, first)[:, 0] // 3, minlength=4)
        assert by_rank.max() - by_rank.min() <= 1
    by_rank = np.bincount(choices(before[:8], 8, 4, 0, "even").slots(ids)[:, 0] // 2, minlength=4)
    assert by_rank.tolist() == [200, 0, 0, 0]


def test_b103_both_copies_get_their_part_of_what_all_groups_bring():
    row, used = np.array([0, 1, 0, 1]), np.zeros(4, np.int64)
    for _ in range(2):
        for rank, real in enumerate((10, 10, 10, 2)):
            picked = choices(row, 2, 4, rank, "even").slots(np.zeros((real, 1), np.int64), first=rank)
            used += np.bincount(picked[:, 0], minlength=4)
    assert used[0] + used[2] == 64 and abs(used[0] - 32) <= 3


def test_every_slot_that_is_chosen_has_the_expert():
    dice = np.random.default_rng(3)
    for _ in range(50):
        ranks, per_rank = dice.integers(1, 5), dice.integers(2, 5)
        experts = dice.integers(2, ranks * per_rank + 1)
        spare = dice.integers(0, experts, ranks * per_rank - experts)
        row = dice.permutation(np.concatenate([np.arange(experts), spare]))
        ids = dice.integers(-1, experts, (64, 2))
        for rule in ("even", "local"):
            tokens = dice.integers(0, 9, ranks).astype(float)
            picked = choices(row, experts, ranks, int(dice.integers(ranks)), rule, tokens).slots(ids, 5)
            assert (picked[ids < 0] == -1).all()
            assert (row[picked[ids >= 0]] == ids[ids >= 0]).all()


def test_local_keeps_tokens_on_their_rank_and_replicas_even():
    row = np.array([0, 1, 0, 2, 3, 4, 5, 6])
    ids, used, stayed = np.zeros((640, 1), np.int64), np.zeros(8, np.int64), 0
    for rank in range(4):
        picked = choices(row, 7, 4, rank, "local").slots(ids, first=640 * rank)[:, 0]
        used += np.bincount(picked, minlength=8)
        stayed += (picked // 2 == rank).sum()
    assert used[0] == used[2] == 4 * 640 / 2
    assert stayed == 2 * 640


def test_local_gives_way_where_a_rank_brings_more_than_its_replica_can_take():
    row, tokens = np.array([0, 1, 0, 2]), np.array([300.0, 100.0])
    used = np.zeros(4, np.int64)
    for rank, brought in enumerate(tokens.astype(int)):
        ids = np.zeros((brought, 1), np.int64)
        used += np.bincount(choices(row, 3, 2, rank, "local", tokens).slots(ids)[:, 0], minlength=4)
    assert abs(used[0] - 200) <= 4 and abs(used[2] - 200) <= 4


def test_b097_without_an_all_to_all_every_rank_chooses_the_same_replica():
    row, dice = np.array([0, 1, 2, 0, 1, 3]), np.random.default_rng(1)
    experts = np.stack([dice.permutation(4)[:2] for _ in range(16)])
    plain = (experts + 1).sum()
    for rule, right in (("even", True), ("local", False)):
        summed = 0
        for rank in range(2):
            slots = choices(row, 4, 2, rank, rule).slots(experts)
            summed += (experts + 1)[slots // 3 == rank].sum()
        assert bool(summed == plain) is right
    check_rule("even", all_to_all=False, where="x")
    check_rule("local", all_to_all=True, where="x")
    with pytest.raises(ConfigError, match=r"runner\.experts\.replicas = 'local'.*use 'even'"):
        check_rule("local", all_to_all=False, where="runner.experts.replicas")
