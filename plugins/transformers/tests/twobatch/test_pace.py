"""When halves are tried, and when they are kept."""

from __future__ import annotations

import pytest

from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.twobatch.decide import Size
from stepwell_transformers.twobatch.pace import TRIALS, From, HostWatch, Measured, Watch


class Slow(Watch[float]):
    """Time that only goes on when it is told to."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        return self.at

    def between(self, begin, end):
        return end - begin


def steps(pace, watch, size, count, whole=1.0, halved=0.6):
    """Run so many; which of them ran as halves."""
    ways = []
    for _ in range(count):
        ways.append(pace.wants(size))
        pace.begin()
        watch.at += halved if ways[-1] else whole
        pace.end(size, halved=ways[-1])
    return ways


def measured(agree=lambda mine: mine):
    watch, said = Slow(), []
    return Measured(agree, watch, said.append), watch, said


@pytest.mark.parametrize(("halved", "kept"), [(0.6, True), (1.0, True), (1.01, False)])
def test_halves_are_kept_where_they_were_not_slower(halved, kept):
    pace, watch, said = measured()
    assert steps(pace, watch, Size(100, 100, True), 2 * TRIALS, halved=halved) == [False, True] * TRIALS
    assert steps(pace, watch, Size(80, 80, True), 5, halved=halved) == [kept] * 5
    assert len(said) == 1
    assert "64 to 127" in said[0]


def test_each_size_and_kind_is_tried_by_itself():
    pace, watch, _ = measured()
    steps(pace, watch, Size(100, 100, True), 2 * TRIALS, halved=0.5)
    assert steps(pace, watch, Size(100, 100, False), 2 * TRIALS, halved=2.0) == [False, True] * TRIALS
    assert steps(pace, watch, Size(200, 200, True), 2) == [False, True]
    assert not pace.wants(Size(100, 100, False))
    assert pace.wants(Size(100, 100, True))


def test_one_rank_that_was_slower_is_enough():
    pace, watch, _ = measured(agree=lambda mine: 0)
    steps(pace, watch, Size(100, 100, True), 2 * TRIALS, halved=0.1)
    assert not pace.wants(Size(100, 100, True))


def test_small_steps_and_those_of_an_idle_rank_are_not_tried():
    pace, watch, said = measured()
    assert steps(pace, watch, Size(8, 8, False), 30) == [False] * 30
    size = Size(0, 500, True)
    for _ in range(30):
        pace.wants(size)
        pace.begin()
        pace.end(size, halved=False)
    assert not said


def test_a_choice_is_made_anew_some_day():
    pace, watch, said = measured()
    size = Size(64, 64, False)
    steps(pace, watch, size, 2 * TRIALS, halved=0.5)
    pace._trial(size).left = 6
    assert steps(pace, watch, size, 6, halved=3.0) == [True] * 6
    assert steps(pace, watch, size, 2 * TRIALS, halved=3.0) == [False, True] * TRIALS
    assert not pace.wants(size)
    assert len(said) == 2


def test_a_number_of_tokens_needs_no_measure():
    pace = From(64)
    assert [pace.wants(Size(1, most, False)) for most in (63, 64)] == [False, True]
    watch = HostWatch()
    assert watch.between(watch.now(), watch.now()) >= 0


@pytest.mark.parametrize(
    ("overlap", "why"), [(0, "is no number of tokens"), ("auto", "set dispatch"), (9, "set dispatch")]
)
def test_a_config_that_asks_for_halves_of_nothing_is_told_what_to_do(overlap, why):
    with pytest.raises(ValueError, match=why):
        TransformersConfig(overlap=overlap)
