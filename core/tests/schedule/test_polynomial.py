"""The polynomial clock: its constants, and what it does with loads and horizons."""

from __future__ import annotations

import pytest

from stepwell.abc.runner import Row
from stepwell.schedule.polynomial import Polynomial

CLOCK = Polynomial(capacity=100_000, link=1e9, layers=10)


def prompt(tokens: int, start: int = 0) -> Row:
    return Row(0, start, tokens, b"\0" * 4 * tokens, True)


def answer(start: int) -> Row:
    return Row(0, start, 1, None, True)


@pytest.mark.parametrize(("tokens", "ms"), [(1, 16.5166), (1000, 32.10585), (8192, 169.1362)])
def test_prompt_tokens_of_all_rows_count_together_wherever_they_start(tokens: int, ms: float) -> None:
    assert CLOCK.step((prompt(tokens),)) == pytest.approx(ms / 1e3, rel=1e-4)
    if tokens > 1:
        assert CLOCK.step((prompt(tokens - 1, 5000), prompt(1))) == pytest.approx(ms / 1e3, rel=1e-4)


@pytest.mark.parametrize(("context", "ms"), [(1000, 6.277526), (50_000, 26.31), (100_000, 34.01), (10**9, 34.01)])
def test_decoding_costs_by_the_share_of_the_device_that_it_holds(context: int, ms: float) -> None:
    assert CLOCK.step((answer(context - 1),)) == pytest.approx(ms / 1e3)
    assert CLOCK.step((answer(context - 501), answer(499))) == pytest.approx(ms / 1e3)


def test_a_step_with_both_takes_the_sum_and_one_with_neither_nothing() -> None:
    both = CLOCK.step((answer(9999), prompt(700)))
    assert both == pytest.approx(CLOCK.step((answer(9999),)) + CLOCK.step((prompt(700),)))
    assert CLOCK.step(()) == 0


def test_loads_run_beside_but_for_one_layer() -> None:
    busy = CLOCK.step((prompt(1000),))
    assert CLOCK.step((prompt(1000),), 1e6) == pytest.approx(busy + 1e-3 / 10)
    assert CLOCK.step((prompt(1000),), 1e9) == pytest.approx(1.0 + busy / 10)


def test_a_horizon_is_its_steps() -> None:
    """The cost bends, so the step in the middle is not quite the mean."""
    starts = [3000, 500, 12_000]
    one_by_one = sum(CLOCK.step([answer(start + step) for start in starts]) for step in range(200))
    decoding = CLOCK.decode(starts)
    assert decoding.seconds(200) == pytest.approx(one_by_one, rel=1e-4)
    steps = decoding.until(200, 1.0)
    assert decoding.seconds(steps - 1) < 1.0 <= decoding.seconds(steps)
