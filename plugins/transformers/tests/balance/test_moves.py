"""Weights on their way from one placement to the next, carried out on arrays."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Placement
from stepwell_transformers.balance import batches, digest, moves


def carry_out(plan, slots, per_rank):
    """What each slot of each layer holds after all stages were filled and put into place, one layer after the other."""
    held = slots.copy()
    for layer in plan:
        before, stages = held[layer.layer].copy(), {}
        for copy in layer.copies:
            if copy.stage is not None:
                stages[copy.target // per_rank, copy.stage] = held[layer.layer, copy.source]
        assert (held[layer.layer] == before).all(), "filling stages wrote to a slot"
        for rank in range(held.shape[1] // per_rank):
            for copy in layer.of(rank):
                inside = copy.stage is None
                assert not inside or copy.source // per_rank == rank
                held[layer.layer, copy.target] = held[layer.layer, copy.source] if inside else stages[rank, copy.stage]
    return held


@st.composite
def placements(draw):
    ranks, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    experts, layers = draw(st.integers(1, ranks * per_rank)), draw(st.integers(1, 3))
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def one():
        spare = dice.integers(0, experts, (layers, ranks * per_rank - experts))
        rows = np.concatenate([np.tile(np.arange(experts), (layers, 1)), spare], axis=1)
        return Placement(dice.permuted(rows, axis=1).astype(np.int32))

    return ranks, per_rank, one(), one()


@settings(max_examples=200, deadline=None)
@given(placements())
def test_every_slot_holds_its_next_expert_and_no_slot_is_written_before_it_was_read(case):
    ranks, per_rank, now, then = case
    plan = moves(now, then, ranks)
    assert (carry_out(plan, now.experts, per_rank) == then.experts).all()
    assert [layer.layer for layer in plan] == np.flatnonzero((now.experts != then.experts).any(axis=1)).tolist()
    for layer in plan:
        assert (layer.next == then.experts[layer.layer]).all()
        assert (
            sorted(copy.target for copy in layer.copies)
            == np.flatnonzero(now.experts[layer.layer] != layer.next).tolist()
        )
        for source, target, copy in layer.between():
            assert copy.stage is not None and source != target


def placed(*rows):
    return Placement(np.array(rows, np.int32))


def test_what_stays_in_its_slot_does_not_move_and_what_is_near_is_read_near():
    # Two nodes of two ranks; expert 0 stands on both nodes.
    now, then = placed([0, 1, 2, 3, 0, 4, 5, 6]), placed([0, 1, 2, 0, 0, 4, 5, 0])
    (layer,) = moves(now, then, ranks=4, nodes=2)
    assert {(copy.source, copy.target) for copy in layer.copies} == {(0, 3), (4, 7)}


def test_replicas_are_read_evenly():
    now = placed([0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    then = placed([0, 1, 0, 2, 0, 4, 0, 6, 0, 8, 0, 10])
    (layer,) = moves(now, then, ranks=6)
    assert Counter(source for source, _, _ in layer.between()) == {0: 2, 1: 2}


def test_slots_of_one_rank_that_change_in_a_ring_go_through_one_stage():
    (layer,) = moves(placed([0, 1, 2, 3]), placed([1, 2, 0, 3]), ranks=1)
    assert [copy.stage is not None for copy in layer.copies].count(True) == 1
    assert layer.stages == 1 and len(layer.staged(0)) == 1
    assert not list(layer.between())


def test_layers_go_a_few_at_a_time():
    plan = moves(placed(*[[0, 1]] * 5), placed(*[[1, 0]] * 5), ranks=2)
    assert [[layer.layer for layer in some] for some in batches(plan, 2)] == [[0, 1], [2, 3], [4]]


def test_nothing_moves_between_equal_placements():
    assert moves(placed([0, 1]), placed([0, 1]), ranks=2) == ()


def test_b096_ranks_that_would_do_something_else_have_another_digest():
    now, then = placed([0, 1, 2, 0], [0, 1, 2, 1]), placed([1, 0, 2, 0], [0, 1, 2, 1])
    plan = moves(now, then, 2)
    mine = digest(now, then, plan)
    assert 0 <= mine < 1 << 62
    assert digest(placed(*now.experts), placed(*then.experts), moves(now, then, 2)) == mine
    others = [
        digest(now, placed([1, 0, 2, 0], [0, 1, 2, 2]), plan),
        digest(placed([0, 1, 2, 1], [0, 1, 2, 1]), then, plan),
        digest(now, then, plan[:0]),
    ]
    assert mine not in others and len(set(others)) == 3


def test_what_cannot_be_moved_is_refused():
    with pytest.raises(ValueError, match="expert 3"):
        moves(placed([0, 1]), placed([0, 3]), 2)
    with pytest.raises(ValueError, match="placement"):
        moves(placed([0, 1]), placed([0, 1], [0, 1]), 2)
