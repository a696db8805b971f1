import pytest

from stepwell.abc.runner import PageCopy, Row, StepPlan
from stepwell.schedule.timing import PRESETS, Machine, Timing

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
