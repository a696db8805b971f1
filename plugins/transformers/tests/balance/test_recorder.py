"""Counts of passes, and when they ask for a plan."""

import numpy as np
import pytest

from stepwell import Placement
from stepwell_transformers.balance import Recorder, Trigger, TriggerSettings, utilisation


def even(layers, ranks, slots, experts):
    return Placement(np.tile(np.arange(ranks * slots) % experts, (layers, 1)).astype(np.int32))


def test_a_pass_counts_half_after_its_half_life():
    recorder = Recorder(1, 2, half_life=3)
    recorder.add(np.array([[800, 0]]))
    for _ in range(3):
        recorder.add(np.array([[0, 10]]))
    assert recorder.load()[0, 0] == 400
    assert recorder.load()[0, 1] == round(10 * (1 + 0.5 ** (1 / 3) + 0.5 ** (2 / 3)))


def test_sums_of_several_passes_age_what_was_before_by_as_many():
    one, other = Recorder(1, 2, 2), Recorder(1, 2, 2)
    for recorder in (one, other):
        recorder.add(np.array([[1000, 0]]))
    one.add(np.array([[0, 40]]), passes=2)
    assert one.load().tolist() == [[500, 40]]
    assert one.passes == 3


def test_passes_without_tokens_are_none():
    recorder = Recorder(2, 2, half_life=1)
    recorder.add(np.array([[5, 5], [9, 1]]))
    for _ in range(100):
        recorder.add(np.zeros((2, 2), np.int64))
    assert recorder.load().tolist() == [[5, 5], [9, 1]]
    assert recorder.passes == recorder.since == 1


def test_what_cannot_be_a_count_is_refused_and_nothing_is_counted():
    recorder = Recorder(1, 2, half_life=10)
    for wrong in (np.array([[1, -1]]), np.array([[1, 2, 3]]), np.array([[0.5, 1.0]])):
        with pytest.raises(ValueError, match="count"):
            recorder.add(wrong)
    assert not recorder.load().any() and recorder.passes == 0


def test_utilisation_is_what_ranks_do_over_what_the_hottest_does():
    placement = Placement(np.array([[0, 1, 2, 0], [0, 1, 2, 0]], np.int32))
    load = np.array([[8, 2, 2], [0, 0, 0]])
    # Rank 0: 4 + 2, rank 1: 2 + 4; a layer without tokens waits for nobody.
    assert utilisation(load, placement, 2).tolist() == [1.0, 1.0]
    assert utilisation(np.array([[12, 0, 0], [0, 6, 0]]), placement, 4).tolist() == [0.5, 0.25]


def test_b104_even_load_asks_for_no_plan_and_skew_for_one():
    dice = np.random.default_rng(0)
    placement, trigger = even(4, 4, 3, 8), Trigger(TriggerSettings(below=0.8, min_gap=100))
    recorder, planned = Recorder(4, 8, half_life=100), []
    for step in range(2000):
        # Experts 0 to 3 have two replicas, so twice the tokens are even.
        tokens = (1000 * np.repeat([2, 1], 4) * dice.uniform(0.95, 1.05, (4, 8))).astype(np.int64)
        if step >= 1000:
            tokens[:, 0] *= 20
        recorder.add(tokens)
        due = trigger.due(recorder.load(), placement, 4, recorder.since)
        if due is not None:
            planned.append((step, due))
            # All four ranks have expert 0 now.
            placement = Placement(np.tile([0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 1], (4, 1)).astype(np.int32))
            trigger.planned(recorder.load(), placement, 4)
            recorder.planned()
    assert len(planned) == 1
    step, due = planned[0]
    assert 1000 <= step < 1100
    assert due.layers and due.worst < 0.8 and not due.old


def test_b104_an_empty_window_asks_for_nothing():
    trigger = Trigger(TriggerSettings(below=1.0, min_gap=1, max_age=1))
    assert trigger.due(np.zeros((3, 4), np.int64), even(3, 2, 2, 4), 2, since=10**6) is None


def test_only_layers_below_are_named_and_not_before_the_gap():
    trigger = Trigger(TriggerSettings(below=0.8, min_gap=10))
    load = np.array([[5, 5, 5, 5], [90, 1, 1, 1], [0, 0, 0, 0]])
    assert trigger.due(load, even(3, 2, 2, 4), 2, since=9) is None
    assert trigger.due(load, even(3, 2, 2, 4), 2, since=10).layers == (1,)


def test_what_no_plan_can_mend_is_tried_again_only_when_worse_or_old():
    trigger = Trigger(TriggerSettings(below=0.9, min_gap=10, worse_by=0.05, max_age=500))
    placement, load = even(1, 2, 2, 4), np.array([[60, 20, 10, 10]])
    assert trigger.due(load, placement, 2, since=10) is not None
    trigger.planned(load, placement, 2)
    assert trigger.due(load, placement, 2, since=499) is None
    assert trigger.due(load, placement, 2, since=500).old
    assert not trigger.due(np.array([[90, 10, 5, 5]]), placement, 2, since=20).old
    assert trigger.due(np.array([[25, 25, 25, 25]]), placement, 2, since=10**6) is None


@pytest.mark.parametrize("wrong", [{"below": 1.5}, {"min_gap": 0}, {"max_age": -1}, {"worse_by": -0.1}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TriggerSettings(**wrong)
