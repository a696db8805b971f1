from dataclasses import replace

import pytest

from stepwell.abc.runner import PageCopy, Row, StepPlan
from stepwell.schedule.presets import PRESETS
from stepwell.schedule.timing import Machine, Narrow, Timing
from stepwell.schedule.timing import pairs as pairs_of
from stepwell.types import Chunked, Full, Window

PLAIN = Timing(
    parameters=1e9,
    weight_bytes=2e9,
    kv_bytes=1000,
    pair_flops=100,
    layers=10,
    flops=1e12,
    bandwidth=1e12,
    link=1e9,
    overhead=0.001,
)


def rows(*spans):
    return tuple(Row(slot, start, count, None, True) for slot, (start, count) in enumerate(spans))


def test_a_decode_step_is_bound_by_memory():
    assert PLAIN.step(rows((99, 1))) == pytest.approx(0.001 + (2e9 + 100 * 1000) / 1e12)


def test_a_chunk_is_bound_by_arithmetic():
    pairs = sum(range(101, 1101))
    assert PLAIN.step(rows((100, 1000))) == pytest.approx(0.001 + (2 * 1e9 * 1000 + 100 * pairs) / 1e12)


def test_loads_hide_behind_the_compute_but_for_one_layer():
    busy = PLAIN.step(rows((0, 1000)))
    assert PLAIN.step(rows((0, 1000)), 1e6) == pytest.approx(busy + 0.001 / 10)
    assert PLAIN.step(rows((0, 1000)), 1e11) == pytest.approx(100 + busy / 10)


def test_decode_steps_sum_up():
    batch = rows((100, 1), (300, 1), (50, 1))
    one_by_one = sum(
        PLAIN.step(tuple(Row(row.slot, row.start + step, 1, None, True) for row in batch)) for step in range(40)
    )
    assert PLAIN.decode([100, 300, 50]).seconds(40) == pytest.approx(one_by_one)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_horizon_stops_with_the_step_in_which_the_time_is_up(preset):
    timing = PRESETS[preset]
    for seconds in (0.0, 0.01, 0.3, 1e9):
        decoding = timing.decode([499] * 8)
        steps = decoding.until(64, seconds)
        assert 1 <= steps <= 64
        assert steps == 64 or decoding.seconds(steps) >= seconds
        assert steps == 1 or decoding.seconds(steps - 1) < seconds


def test_a_machine_runs_plans():
    import numpy as np

    machine = Machine(PLAIN, [500])
    ids = np.arange(4, dtype=np.int32)
    plan = StepPlan(1, rows=rows((100, 20)), loads=(PageCopy(1, 0, ids, ids),))
    assert machine.run(plan) == (1, PLAIN.step(plan.rows, 2000))
    plan = StepPlan(2, rows=rows((100, 1)), horizon=30)
    assert machine.run(plan) == (30, PLAIN.decode([100]).seconds(30))
    steps, seconds = machine.run(plan, 0.01)
    assert steps == PLAIN.decode([100]).until(30, 0.01)
    assert seconds == PLAIN.decode([100]).seconds(steps)


WINDOW = replace(PLAIN, kv_bytes=600, pair_flops=60, narrow=(Narrow(Window(99), 400, 40),))
"""Two fifths of the bytes and operations are those of layers that see 100 tokens, the token itself among them."""


def test_a_decode_row_reads_no_more_than_its_window():
    for start, seen in ((0, 1), (49, 50), (99, 100), (100, 100), (5000, 100)):
        bytes_read = 2e9 + 600 * (start + 1) + 400 * seen
        assert WINDOW.step(rows((start, 1))) == pytest.approx(0.001 + bytes_read / 1e12), start


def test_a_chunk_attends_within_its_window():
    pairs = sum(range(51, 1051)), sum(min(n, 100) for n in range(51, 1051))
    flops = 2 * 1e9 * 1000 + 60 * pairs[0] + 40 * pairs[1]
    assert WINDOW.step(rows((50, 1000))) == pytest.approx(0.001 + flops / 1e12)


def test_a_long_chunk_reads_what_lies_before_it_and_itself():
    """Of layers with the window 99 tokens before the chunk and its own 10, of the others all 5010."""
    memory = replace(WINDOW, parameters=0)
    assert memory.step(rows((5000, 10))) == pytest.approx(0.001 + (2e9 + 600 * 5010 + 400 * 109) / 1e12)


def test_chunked_layers_begin_anew_at_each_chunk():
    """Chunks of 8: a row at 13 sees 8 to 13, one of 10 tokens from 6 on sees 7, 8, then 1 to 8."""
    chunked = replace(PLAIN, kv_bytes=0, pair_flops=0, narrow=(Narrow(Chunked(8), 1000, 1e6),), weight_bytes=0)
    assert replace(chunked, parameters=0, narrow=(Narrow(Chunked(8), 1000, 0),)).step(rows((13, 1))) == pytest.approx(
        0.001 + 6 * 1000 / 1e12
    )
    pairs = 7 + 8 + sum(range(1, 9))
    assert chunked.step(rows((6, 10))) == pytest.approx(0.001 + (2e9 * 10 + 1e6 * pairs) / 1e12)


@pytest.mark.parametrize("need", [Full(), Window(0), Window(7), Chunked(1), Chunked(5)])
def test_pairs_are_those_that_are_counted_one_by_one(need):
    for tokens in range(40):
        assert pairs_of(need, tokens) == sum(at - need.lo(at) + 1 for at in range(tokens))


@pytest.mark.parametrize("need", [Window(60), Chunked(50)])
def test_decode_steps_of_narrow_layers_sum_up(need):
    """Rows before, across and past the end of a window, over several chunks."""
    timing = replace(WINDOW, narrow=(Narrow(need, 400, 40),))
    starts = (10, 55, 300)
    one_by_one = sum(timing.step(rows(*((start + step, 1) for start in starts))) for step in range(120))
    assert timing.decode(starts).seconds(120) == pytest.approx(one_by_one)
    decoding = timing.decode(starts)
    steps = decoding.until(120, 0.1)
    assert decoding.seconds(steps - 1) < 0.1 <= decoding.seconds(steps)


def test_a_step_reads_the_experts_that_its_tokens_choose():
    """Of 8 experts 2 a token: one token reads a quarter, two 7/16, and very many all."""
    mixed = replace(PLAIN, kv_bytes=0, parameters=0, pair_flops=0, expert_bytes=1e9, expert_share=0.25)
    for tokens, share in ((1, 1 / 4), (2, 7 / 16), (500, 1)):
        assert mixed.step(rows((0, tokens))) == pytest.approx(0.001 + (2e9 + share * 1e9) / 1e12)
