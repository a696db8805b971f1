import pytest

from stepwell.schedule.admission import chunk_end
from stepwell.schedule.forecast import Forecast


@pytest.mark.parametrize(
    ("start", "target", "budget", "page", "end"),
    [
        (0, 100, 1000, 16, 100),
        (0, 100, 50, 16, 48),
        (16, 100, 50, 16, 64),
        (20, 100, 50, 16, 64),
        (16, 100, 15, 16, 16),
        (96, 100, 4, 16, 100),
        (20, 100, 5, 16, 20),
        (0, 7, 3, 1, 3),
    ],
)
def test_a_chunk_ends_at_the_target_or_at_a_page(start, target, budget, page, end):
    assert chunk_end(start, target, budget, page) == end


def test_the_forecast_jumps_up_and_sinks_slowly():
    forecast = Forecast(0.4)
    forecast.ran_out()
    assert forecast.margin == pytest.approx(0.6)
    for _ in range(1000):
        forecast.finished(100, 100)
    assert forecast.margin == pytest.approx(0.1, abs=0.01)
    for _ in range(20):
        forecast.ran_out()
    assert 0.99 < forecast.margin <= 1
