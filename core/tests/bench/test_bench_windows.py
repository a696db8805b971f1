"""`stepwell bench windows` holds what caching windows is claimed to save."""

import json

import pytest
from click.testing import CliRunner

from stepwell.bench.windows import MIXES, Mix, command
from stepwell.errors import ConfigError


def told(*options):
    result = CliRunner().invoke(command, [*options, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_windows_of_4096_make_20480_tokens_five_times_smaller():
    result = told()
    assert (result["window"], result["tokens"]) == (4096, 20480)
    assert result["host_pages"] == {"whole": 1280, "windows": 257}, "a window, and one page for the same prompt again"
    assert result["host_bytes_ratio"] >= 4.95
    assert result["moved_bytes_ratio"] >= 4.95
    assert result["cached_requests_ratio"] >= 4.95
    assert [mix["name"] for mix in result["mixes"]] == [mix.name for mix in MIXES]
    for mix in result["mixes"]:
        assert mix["off"] <= 0.03
        assert mix["measured"] == pytest.approx(mix["formula"], rel=0.03)


@pytest.mark.parametrize(("page", "kept"), [(1, 256), (4, 256 // 4 + 1), (64, 256 // 64 + 1)])
def test_other_pages_keep_a_window_and_one_page(page, kept):
    result = told("--window", "256", "--tokens", "2048", "--page", str(page), "--chunk", "500")
    assert result["host_pages"] == {"whole": 2048 // page, "windows": kept}


def test_a_window_as_long_as_the_prompt_saves_nothing():
    result = told("--window", "4096", "--tokens", "1000", "--chunk", "300")
    assert result["host_bytes_ratio"] == result["moved_bytes_ratio"] == result["cached_requests_ratio"] == 1
    assert result["host_pages"] == {"whole": 62, "windows": 62}, "whole pages only"


def test_chunks_change_nothing_that_is_kept():
    small = [told("--window", "128", "--tokens", "512", "--chunk", str(chunk)) for chunk in (16, 100, 512)]
    assert len({(each["host_bytes_ratio"], each["moved_bytes_ratio"]) for each in small}) == 1


def test_the_formula_is_that_of_windows_over_all_tokens():
    assert Mix("all windows", 0, 4, 4097).gain(20480, 16) == 5
    assert Mix("no windows", 3, 0, 128).gain(20480, 16) == 1
    assert Mix("half", 1, 1, 10_000).gain(100, 16) == 1


def test_without_json_it_shows_tables():
    result = CliRunner().invoke(command, ["--window", "64", "--tokens", "640"])
    assert result.exit_code == 0, result.output
    assert "requests in the same memory" in result.output and "by arithmetic" in result.output


def test_less_than_a_page_is_refused():
    with pytest.raises(ConfigError, match="--tokens 10 fill no page of 16"):
        CliRunner().invoke(command, ["--tokens", "10"], catch_exceptions=False)
