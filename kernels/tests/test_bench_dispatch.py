"""`stepwell bench dispatch` on two ranks of this machine's CPU, and what it makes of their times."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stepwell import ConfigError
from stepwell.cli.options import read_config
from stepwell_kernels.bench import dispatch_runs
from stepwell_kernels.bench.dispatch import dispatch
from stepwell_kernels.bench.dispatch_rank import Found

SIZES = {"ranks": 2, "tokens": 20, "hidden": 32, "top-k": 2, "experts": 4, "rounds": 2}
SMALL = ["--device=cpu", "--json", "--tokens=6", *(f"--{name}={value}" for name, value in SIZES.items())]


def test_a_backend_stands_next_to_what_it_sends_with() -> None:
    lowered = "bench.collective-low-latency.capacity=10"
    done = CliRunner().invoke(dispatch, [*SMALL, "--backends", "collective-low-latency", "--set", lowered])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [(row["tokens"], row["format"]) for row in result["rows"]] == [(6, "masked"), (10, "masked")]
    for row in result["rows"]:
        assert 0 < row["dispatch_least_ms"] <= row["dispatch_ms"] < row["both_ms"]
        assert row["error"] < 0.02 and row["direct_ms"] > 0 and row["over_direct"].endswith("%")
        assert 0 < row["bytes"] <= row["tokens"] * 64
    assert result["failed"] == {} and result["ranks"] == 2
    assert "collective-low-latency on 2 ranks" in done.stderr


def test_the_slowest_rank_of_a_turn_counts() -> None:
    ranks = [
        Found(4, "once", 1000, 0.1, [1.0, 5.0, 1.0], [1.0, 1.0, 1.0], [2.0, 2.0, 1.0], []),
        Found(4, "once", 3000, 0.2, [2.0, 2.0, 2.0], [4.0, 1.0, 1.0], [1.0, 2.0, 3.0], []),
    ]
    row = dispatch_runs.row_of("some", ranks)
    assert (row["dispatch_ms"], row["dispatch_least_ms"]) == (2000, 2000)
    assert (row["combine_ms"], row["both_ms"], row["both_least_ms"]) == (1000, 6000, 3000)
    assert (row["direct_ms"], row["over_direct"], row["error"], row["bytes"]) == (2000, "+200.0%", 0.2, 3000)
    assert "graph_ms" not in row


def test_what_cannot_be_measured_is_said_before_anything_starts() -> None:
    config = read_config(None, ["bench.slowed.gb_per_s=1"])
    with pytest.raises(ConfigError, match="nothing installed offers it"):
        dispatch_runs.chosen(["no-such"], config)
    with pytest.raises(ConfigError, match=r"bench\.slowed\.inner\.use is required and not set"):
        dispatch_runs.chosen(["slowed"], config)
    with pytest.raises(ConfigError, match="100 ranks need as many CUDA devices"):
        dispatch_runs.where("cuda", 100)


def test_backends_made_of_others_are_measured_only_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = dispatch_runs.chosen([], read_config(None))
    assert {"collective", "collective-low-latency"} <= set(found)
    assert not {"auto", "slowed"} & set(found)
