"""What `--compare` and `--sweep` come to: combinations, baselines, ratios and the document."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import ConfigError
from stepwell.replay.compare import (
    MOST,
    Combination,
    Policy,
    Sweep,
    baseline,
    document,
    grid,
    policies,
    ratios,
    sweeps,
)
from stepwell.replay.result import Hits, Result

FCFS, LPM = Policy("fcfs"), Policy("lpm", (("schedule.max_passes", "16"),))


def test_policies_are_parted_by_commas_and_their_settings_by_colons() -> None:
    assert policies(["lpm:max_passes=16, fcfs"]) == [LPM, FCFS]
    assert policies(["fcfs", "lpm:max_passes=16"]) == [FCFS, LPM]
    assert policies(["a:x=[1,2]:y={k=1:2},b"]) == [
        Policy("a", (("schedule.x", "[1,2]"), ("schedule.y", "{k=1:2}"))),
        Policy("b"),
    ]
    assert policies(["choices:order.use=lpm:order.depth=2"])[0].settings == (
        ("schedule.order.use", "lpm"),
        ("schedule.order.depth", "2"),
    )
    assert str(LPM) == "lpm:max_passes=16"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["fcfs,,lpm"], "empty name"),
        ([""], "empty name"),
        (["fcfs", "lpm,fcfs"], "names fcfs twice"),
        (["lpm:16"], "lpm:key=value"),
        (["lpm:=16"], "lpm:key=value"),
        (["lpm:use=fcfs"], "lpm:key=value"),
        (["lpm:"], "^--compare 'lpm:': write"),
        (["fcfs,lpm:depth=1:depth = 2"], "sets depth twice"),
    ],
)
def test_a_policy_that_cannot_be_read_is_one_sentence(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policies(texts)


def test_sweeps_are_a_setting_or_the_speed_with_values() -> None:
    assert sweeps(["cache.device_pages=1, 2", "speed=0.5,2"]) == [
        Sweep("cache.device_pages", ("1", "2")),
        Sweep("speed", ("0.5", "2")),
    ]
    assert sweeps(["a.b=[1,2],[3]"])[0].values == ("[1,2]", "[3]")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["cache.device_pages"], "section.key=value"),
        (["cache.device_pages="], "section.key=value"),
        (["cache.device_pages=1,,2"], "section.key=value"),
        (["pages=1"], "section.key=value"),
        (["cache.=1"], "section.key=value"),
        (["cache.device_pages=1,2,1"], "twice"),
        (["cache.device_pages=1", "cache.device_pages=2"], "given twice"),
        (["schedule.use=fcfs,lpm"], "--compare fcfs,lpm"),
        (["replay.tokenizer=a,b"], "same tokens"),
        (["speed=0,1"], "a speed is a number"),
        (["speed=nan"], "a speed is a number"),
        (["speed=inf"], "a speed is a number"),
        (["speed=true"], "a speed is a number"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_one_sentence(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sweeps(texts)


def test_a_grid_has_every_policy_with_every_value_and_the_policies_side_by_side() -> None:
    found = grid([FCFS, LPM], [Sweep("cache.device_pages", ("1", "2")), Sweep("speed", ("3",))])
    assert [one.name for one in found] == [
        "fcfs device_pages=1 speed=3",
        "lpm:max_passes=16 device_pages=1 speed=3",
        "fcfs device_pages=2 speed=3",
        "lpm:max_passes=16 device_pages=2 speed=3",
    ]
    assert found[1].sets == ("schedule.use=lpm", "schedule.max_passes=16", "cache.device_pages=1")
    assert found[1].speed == 3.0
    assert [one.sets for one in grid([], [Sweep("a.b", ("x", "y"))])] == [("a.b=x",), ("a.b=y",)]


def test_a_policy_without_the_swept_setting_runs_once() -> None:
    lpm = Policy("lpm")
    found = grid([FCFS, lpm], [Sweep("schedule.max_passes", ("1", "2"))], lambda policy, key: policy == lpm)
    assert [one.name for one in found] == ["fcfs", "lpm max_passes=1", "lpm max_passes=2"]
    with pytest.raises(ConfigError, match="no policy that is compared"):
        grid([FCFS, lpm], [Sweep("schedule.other", ("1",))], lambda policy, key: False)


def test_a_setting_has_one_value_in_a_combination() -> None:
    with pytest.raises(ConfigError, match="leave one out"):
        grid([LPM], [Sweep("schedule.max_passes", ("1", "2"))])


def test_a_slip_of_the_keyboard_does_not_start_thousands_of_replays() -> None:
    values = tuple(map(str, range(MOST)))
    assert len(grid([], [Sweep("a.b", values)])) == MOST
    with pytest.raises(ConfigError, match=rf"512 combinations, more than the {MOST}"):
        grid([FCFS, LPM], [Sweep("a.b", values)])


def test_the_baseline_is_the_first_policy_at_the_same_values() -> None:
    combinations = grid([FCFS, LPM], [Sweep("a.b", ("1", "2"))])
    outcomes = [(one, _result(1.0)) for one in combinations]
    assert [baseline(outcomes, one)[0].name for one in combinations] == ["fcfs b=1", "fcfs b=1", "fcfs b=2", "fcfs b=2"]
    alone = [(one, _result(1.0)) for one in grid([], [Sweep("a.b", ("1", "2"))])]
    assert [baseline(alone, one)[0].name for one, _ in alone] == ["b=1", "b=1"]


def test_a_baseline_that_ran_once_is_that_of_all_values() -> None:
    lpm = Policy("lpm")
    combinations = grid([FCFS, lpm], [Sweep("schedule.x", ("1", "2"))], lambda policy, key: policy == lpm)
    outcomes = [(one, _result(1.0)) for one in combinations]
    assert {baseline(outcomes, one)[0].name for one in combinations} == {"fcfs"}


def test_ratios_are_over_the_baseline_and_none_over_nothing() -> None:
    base, half = _result(4.0), _result(2.0)
    found = ratios(half, base)
    assert found["ttft_mean"] == found["ttft_p99"] == found["latency_mean"] == found["latency_p99"] == 0.5
    assert found["output_tokens_s"] == 2.0
    assert found["hit_share"] == 1.0
    assert found["worst_wait"] is None  # nobody waited in the baseline


def test_the_document_names_every_combination_with_settings_ratios_and_result() -> None:
    combinations = grid([FCFS, LPM], [Sweep("cache.device_pages", ("64", "128")), Sweep("replay.preset", ("a",))])
    outcomes = [(one, _result(4.0 / (1 + number))) for number, one in enumerate(combinations)]
    found: Any = document("trace.jsonl", outcomes)
    assert {key: found[key] for key in ("trace", "baseline", "compared", "swept")} == {
        "trace": "trace.jsonl",
        "baseline": "fcfs",
        "compared": ["fcfs", "lpm:max_passes=16"],
        "swept": {"cache.device_pages": [64, 128], "replay.preset": ["a"]},
    }
    entry = found["combinations"][1]
    assert set(entry) == {"name", "policy", "settings", "baseline", "ratios", "result"}
    assert entry["name"] == "lpm:max_passes=16 device_pages=64 preset=a"
    assert entry["policy"] == "lpm:max_passes=16"
    assert entry["settings"] == {
        "schedule.use": "lpm",
        "schedule.max_passes": 16,
        "cache.device_pages": 64,
        "replay.preset": "a",
    }
    assert entry["baseline"] == "fcfs device_pages=64 preset=a"
    assert entry["ratios"]["ttft_mean"] == 0.5
    assert entry["result"] == outcomes[1][1].as_json()
    alone: Any = document("t", [(Combination(None, (("a.b", "1"),)), _result(1.0))])
    assert alone["baseline"] == "b=1"
    assert alone["compared"] == []
    assert alone["combinations"][0]["policy"] is None


def _result(scale: float) -> Result:
    """As if everything took so many times as long."""
    times = [scale, 2 * scale]
    return Result(
        Hits(1000, device=100),
        Hits(500),
        requests=2,
        finished=2,
        output_tokens=80,
        answered_s=4 * scale,
        ttft_s=times,
        latency_s=times,
        waits_s=[0.0, 0.0],
    )
