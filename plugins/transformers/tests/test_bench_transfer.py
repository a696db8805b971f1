"""The command on a machine without a GPU, and how it counts."""

import json

import pytest
import torch
from click.testing import CliRunner

from stepwell import ConfigError
from stepwell_transformers.bench.transfer import check_room, transfer
from stepwell_transformers.bench.transfer_runs import Turns

GPU = torch.cuda.is_available()


@pytest.mark.skipif(GPU, reason="measures there")
def test_without_a_gpu_it_says_what_it_needs():
    error = CliRunner().invoke(transfer).exception
    assert isinstance(error, ConfigError)
    assert str(error) == "bench transfer measures the link to a CUDA device, and torch finds none here"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pages", "1,a"], "'1,a' is no list of sizes"),
        (["--pages", "0"], "'0' is no list of sizes"),
        (["--methods", "auto,best"], "'best' is none of auto, cuda, triton, engine, torch"),
    ],
)
def test_what_was_mistyped_is_named(options, said):
    result = CliRunner().invoke(transfer, options)
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")


def test_more_than_either_memory_holds_is_refused_before_it_is_taken():
    check_room(2**30, 2**31, 2**31)
    check_room(2**30, None, 2**31)  # a system that does not say
    for host, device, short in ((2**31 - 1, 2**40, "host"), (2**40, 2**30, "device"), (None, 0, "device")):
        with pytest.raises(ConfigError, match=rf"take 2 GiB of {short} memory.*lower --tokens"):
            check_room(2**30, host, device)


def test_a_rate_is_of_the_median_turn():
    turns = Turns()
    turns.add("one", "h2d", lambda: None, 4_000_000_000)
    assert turns.gb_s("one", "h2d") is None
    turns.times["one", "h2d"] = [9.0, 1.0, 2.0]
    assert turns.gb_s("one", "h2d") == 2.0


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs CUDA")
def test_it_measures(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = ["--pages", "1,16", "--tokens", "2048", "--layers", "16", "--rounds", "1", "--json"]
    result = CliRunner().invoke(transfer, options)
    found = json.loads(result.stdout)
    assert set(found["link_gb_s"]) == {"h2d", "d2h", "both"}
    assert {(row["page"], row["direction"]) for row in found["rows"]} == {
        (page, direction) for page in (1, 16) for direction in ("h2d", "d2h", "both")
    }
    assert all(row["gb_s"] > 0 for row in found["rows"])
