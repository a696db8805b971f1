"""Where things lie in shared memory, and what kernels are compiled for."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepwell import Traffic
from stepwell_symm.constants import Given, low_constants, normal_constants, wide
from stepwell_symm.places import ALIGNED, CHUNK, LowPlaces, Places, Row, chunks, stacked


@given(some.dictionaries(some.text(min_size=1, max_size=3), some.integers(0, 5000), max_size=8))
def test_things_lie_one_after_another(sizes):
    places = stacked(sizes)
    end = 0
    for name, size in sizes.items():
        assert places[name] % ALIGNED == 0 and places[name] >= end
        end = places[name] + size
    assert end <= places["size"] < end + ALIGNED


@pytest.mark.parametrize(("eight", "there"), [(False, 14336), (True, 7168 + 4 * 56)])
def test_a_token_takes_what_it_takes(eight, there):
    row = Row(7168, 2, eight)
    assert row.size + row.scales == there
    assert row.sums == 14336


def test_memory_is_what_the_readme_says():
    row = Row(7168, 2, False)
    assert Places.of(Traffic(256, 8, 7168, "bfloat16", 4096), 2, row, 128).size / 1e6 == pytest.approx(236, abs=1)
    low = LowPlaces.of(Traffic(288, 8, 7168, "bfloat16", 128), 2, row, 128)
    assert low.size / 1e6 == pytest.approx(7.4, abs=0.1)


def test_rows_of_sums_share_flags():
    assert [chunks(rows) for rows in (0, 1, CHUNK, CHUNK + 1)] == [0, 1, 1, 2]
    assert [wide(count) for count in (1, 2, 3, 256, 257)] == [1, 2, 4, 256, 512]


def test_kernels_know_where_things_lie():
    traffic, row = Traffic(6, 2, 256, "float32", 10), Row(256, 4, True)
    what = Given(traffic, row, 1, 3, True)
    places = Places.of(traffic, 3, row, 4)
    made = normal_constants(what, places, 4)
    assert {constants["RANK"] for constants in made.values()} == {1}
    assert made["send"]["TOKENS"] == places.tokens and made["send"]["WORDS"] == 256
    assert made["arrive"]["FLAGS"] == 12
    low = low_constants(what, LowPlaces.of(traffic, 3, row, 8), 8)
    assert low["spread"]["WORDS"] == 64  # what came takes a byte a number; what is sent is read as it was given
    assert low["send"]["WORDS"] == 256
    assert asdict(places)["size"] > places.sums
