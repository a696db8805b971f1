"""Arithmetic of the bench, with values that can be checked by hand."""

from __future__ import annotations

import pytest

from stepwell_server.bench.figures import OTHER, client, price, reasons, spread, window_end
from stepwell_server.bench.results import Spread
from stepwell_server.bench.samples import Sample
from stepwell_server.bench.table import number


def sample(due=0.0, sent=0.0, arrivals=(), counts=None, end=0.0, **more) -> Sample:
    return Sample(due, sent, list(arrivals), list(counts or [1] * len(arrivals)), end, **more)


def test_percentiles_of_known_values():
    assert spread([]) is None
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0)
    assert spread([float(i) for i in range(101)]) == Spread(50.0, 50.0, 90.0, 99.0, 100.0)
    assert spread([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 2.5, 3.7, 3.97, 4.0)  # interpolated, in any order


def test_times_of_one_answer_count_from_when_it_was_due():
    one = sample(due=1.0, sent=1.5, arrivals=[2.0, 2.25, 3.0], end=3.0, output=3)
    assert (one.ttft, one.latency, one.tpot) == (1.0, 2.0, 0.5)
    assert one.gaps() == [0.25, 0.75]


def test_several_tokens_of_an_arrival_are_not_its_first_alone():
    one = sample(arrivals=[1.0, 2.0], counts=[4, 4], end=2.0, output=8)
    assert one.tpot == 0.25
    assert sample(arrivals=[1.0], counts=[8], end=1.0, output=8).tpot is None


def test_tokens_count_until_the_window_ends():
    one = sample(arrivals=[1.0, 2.0, 3.0, 4.0], end=4.0, output=8)  # two tokens each, as the server's usage says
    assert [one.output_until(end) for end in (0.5, 1.0, 2.5, 4.0, 9.0)] == [0, 2, 4, 8, 8]
    samples = [one, sample(end=7.0)]
    assert window_end(samples, 0.0, None) == 7.0
    assert window_end(samples, 0.0, 5.0) == 5.0
    assert window_end(samples, 0.0, 50.0) == 7.0
    assert window_end([], 3.0, None) == 3.0


def test_reasons_beyond_the_most_frequent_are_summed_up():
    samples = [sample(failure=f"reason {i}") for i in range(12) for _ in range(20 - i)] + [sample()]
    found = reasons(samples)
    assert next(iter(found)) == "reason 0"
    assert found["reason 0"] == 20
    assert found[OTHER] == sum(20 - i for i in range(8, 12))
    assert sum(found.values()) == len(samples) - 1


def test_a_slow_client_is_said_to_be_one():
    quick = [sample(arrivals=[0.1 * i for i in range(1, 6)], end=0.5, output=5)]
    assert client(quick, [0.0] * 100, 0.2, 1).kept_up
    assert client(quick, [0.009] * 100, 0.2, 1).kept_up  # a tenth of the time between arrivals
    lagging = client(quick, [0.03] * 100, 0.2, 1)
    assert not lagging.kept_up
    assert "30.0 ms late" in lagging.doubts[0]
    assert client(quick, [0.03] * 100, None, 1).kept_up  # in process arrivals are timed elsewhere
    assert "95% of a core" in client(quick, [0.0], 0.95, 1).doubts[0]
    late = client([sample(due=0.0, sent=0.5, arrivals=[1.0], end=1.0)], [0.0], 0.2, 1)
    assert late.late_max_s == 0.5
    assert not late.kept_up


def test_price_of_a_million_tokens():
    found = price(1000.0, 4000.0, 2, 3.6)
    assert found.gpu_seconds_per_million_output == 2000.0
    assert found.gpu_seconds_per_million_total == 500.0
    assert found.per_million_output == pytest.approx(2.0)
    assert found.per_million_total == pytest.approx(0.5)
    assert price(1000.0, None, 1, None).per_million_total is None
    assert price(0.0, 0.0, 1, 1.0) is None


def test_numbers_have_three_digits():
    assert [number(value) for value in (None, 0.0, 0.01234, 1.5, 12.34, 123.4, 12345.6)] == [
        *("-", "0", "0.0123", "1.50", "12.3", "123", "12,346")
    ]
