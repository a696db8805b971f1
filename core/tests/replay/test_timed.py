"""The timed replay: the fields that others read, what must hold between them, and that a run is like the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, STORED, conversations, refused, replay, write

PAGE = 512
TOKEN = 32 * 2 * 8 * 128 * 2
"""Bytes of a token's KV in the default preset."""


def timeless(document: dict[str, Any]) -> str:
    """A document without the time that it took."""
    return "\n".join(line for line in json.dumps(document, indent=1).splitlines() if '"wall_s"' not in line)


def hits(document: dict[str, Any], tier: str) -> int:
    found: int = document["all"]["hit_tokens"][tier]
    return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write(tmp_path_factory.mktemp("trace") / "t.jsonl", conversations())
    return replay(path, "--price", "3.6", sets=STORED)


def test_the_promised_fields(stored: Any) -> None:
    for part in ("all", "last_half"):
        assert set(stored[part]["hit_tokens"]) == {"device", "host", "storage"}
        assert isinstance(stored[part]["input_tokens"], int)
    assert set(stored["bytes_moved"]) == {"load", "save", "store", "fetch"}
    assert stored["gpu_seconds"] > 0
    assert stored["wall_s"] > 0
    assert stored["money_per_million_tokens"] == pytest.approx(stored["gpu_seconds_per_million_tokens"] / 1000)
    assert set(stored["ttft_s"]) == set(stored["latency_s"]) == {"mean", "p50", "p90", "p99", "p100"}


def test_what_goes_in_comes_out(stored: Any) -> None:
    lines = conversations()
    assert stored["requests"] == stored["finished"] == len(lines)
    assert stored["refused"] == 0
    assert stored["all"]["input_tokens"] == sum(int(str(line["input_length"])) for line in lines)
    assert stored["last_half"]["input_tokens"] == sum(int(str(line["input_length"])) for line in lines[80:])
    assert stored["output_tokens"] == sum(int(str(line["output_length"])) for line in lines)


def test_throughput_counts_until_the_last_answer_and_not_until_the_last_store(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", conversations(10))
    quick, slow = (replay(path, sets=(*STORED, f"replay.storage_write_gb_s={speed}")) for speed in (1e6, 1e-2))
    assert slow["virtual_s"] > 10 * slow["answered_s"] > 0
    assert slow["throughput"] == quick["throughput"]
    answered = slow["answered_s"]
    assert slow["throughput"]["output_tokens_s"] == pytest.approx(slow["output_tokens"] / answered, rel=1e-5)
    assert slow["throughput"]["requests_s"] == pytest.approx(10 / answered, rel=1e-5)
    last = conversations(10)[-1]["timestamp"]
    assert answered >= float(str(last)) / 1e3


def test_a_prompt_token_is_computed_or_hit(stored: Any) -> None:
    hit = sum(stored["all"]["hit_tokens"].values())
    assert stored["retractions"] == 0
    assert stored["computed_tokens"] == stored["all"]["input_tokens"] - hit
    assert stored["bytes_baseline"]["recomputed"] == stored["computed_tokens"] * TOKEN
    assert stored["bytes_baseline"]["recomputed_without_cache"] == stored["all"]["input_tokens"] * TOKEN


def test_pages_come_back_from_every_tier(stored: Any) -> None:
    moved = stored["bytes_moved"]
    assert min(stored["all"]["hit_tokens"].values()) > 0
    assert moved["load"] >= (hits(stored, "host") + hits(stored, "storage")) * TOKEN
    assert moved["fetch"] >= hits(stored, "storage") * TOKEN
    assert 0 < moved["store"] <= moved["save"]
    assert all(count % (PAGE * TOKEN) == 0 for count in moved.values())


def test_two_runs_are_equal_and_another_speed_is_not(trace: Path) -> None:
    one = timeless(replay(trace, sets=STORED))
    assert timeless(replay(trace, sets=STORED)) == one
    assert timeless(replay(trace, "--speed", "1", sets=STORED)) == one
    fast = replay(trace, "--speed", "50", sets=STORED)
    assert fast["virtual_s"] < json.loads(one)["virtual_s"] / 2
    assert fast["finished"] == 160


def test_more_load_waits_longer(trace: Path) -> None:
    slow, fast = (replay(trace, "--speed", speed, sets=SMALL)["ttft_s"]["mean"] for speed in ("0.5", "100"))
    assert fast > 2 * slow


def test_more_pages_hit_more_and_compute_less(trace: Path) -> None:
    few, many = (replay(trace, sets=["replay.devices=1", f"cache.device_pages={n}"]) for n in (30, 3000))
    assert hits(many, "device") > hits(few, "device")
    assert many["gpu_seconds"] < few["gpu_seconds"]


def test_fetches_that_take_too_long_are_given_up(trace: Path) -> None:
    slow = (*STORED, "replay.storage_read_gb_s=0.02", "prefetch.use=timeout")
    short = ("prefetch.base_s=0.1", "prefetch.per_ki_token_s=0")
    stopped, waited = replay(trace, sets=(*slow, *short)), replay(trace, sets=slow)
    quick = replay(trace, sets=STORED)
    assert stopped["finished"] == waited["finished"] == 160
    assert hits(stopped, "storage") < hits(quick, "storage")
    assert stopped["ttft_s"]["mean"] < waited["ttft_s"]["mean"]


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize("prefetch", ["best_effort", "wait_complete", "timeout"])
def test_policies_of_the_tiers(trace: Path, policy: str, prefetch: str) -> None:
    sets = (*STORED, f"write.use={policy}", f"prefetch.use={prefetch}")
    document = replay(trace, "--limit", "80", sets=sets)
    assert document["finished"] == 80
    assert document["bytes_moved"]["save"] > 0
    assert document["setup"]["write"] == policy


def test_small_pages_find_at_least_as_much(trace: Path) -> None:
    roomy = ["replay.devices=1", "cache.device_gib=60"]
    large, small = replay(trace, sets=roomy), replay(trace, sets=[*roomy, "cache.page_size=64"])
    assert small["setup"]["page_size"] == 64
    assert hits(small, "device") >= hits(large, "device") > 0


def test_a_text_trace(tmp_path: Path) -> None:
    said, lines = "You answer questions about wells. " * 20, []
    for turn in range(12):
        said += f"Question {turn}? "
        lines.append({"timestamp": turn * 2_000_000, "input": said, "output": "Yes. " * 9, "session_id": "a"})
    path = write(tmp_path / "t.jsonl", lines)
    document = replay(path, sets=["replay.preset=cpu-smollm2", "replay.devices=1"])
    assert (document["finished"], document["setup"]["page_size"]) == (12, 16)
    assert hits(document, "device") > document["all"]["input_tokens"] * 0.8
    instantly = replay(path, "--instant", sets=["cache.device_pages=100000"])
    assert hits(instantly, "device") >= hits(document, "device")


def test_what_never_fits_is_refused_and_counted(tmp_path: Path) -> None:
    lines = conversations(10)
    lines[4] = {**lines[4], "input_length": 512 * 100, "hash_ids": list(range(500, 600))}
    document = replay(write(tmp_path / "t.jsonl", lines), sets=SMALL)
    assert (document["finished"], document["refused"]) == (9, 1)


def test_pages_that_run_out_cost_retractions_and_no_request(tmp_path: Path) -> None:
    lines = [{**line, "output_length": 1800, "timestamp": 0} for line in conversations(40)]
    document = replay(write(tmp_path / "t.jsonl", lines), sets=["replay.devices=1", "cache.device_pages=60"])
    assert document["finished"] == 40
    assert document["retractions"] > 0
    assert document["output_tokens"] == 40 * 1800


@pytest.mark.parametrize(
    ("options", "sets", "words"),
    [
        (["--instant", "--ablate"], [], "leave --instant or --ablate out"),
        (["--html", "nowhere/page.html"], [], "there is no folder nowhere"),
        (["--block-tokens", "64"], [], "does --block-tokens fit this trace?"),
        (["--block-tokens", "0"], [], "--block-tokens"),
        (["--speed", "0"], [], "--speed"),
        (["--speed", "nan"], [], "nan is no number to count with"),
        (["--html", "."], [], "this is a folder; name a file"),
        ([], ["cache.host_gib=1", "replay.storage_gib=inf"], "inf is more than can be meant"),
        ([], ["replay.model=~nobody-of-this-name/x"], "cannot be read"),
        ([], ["replay.preset=h300"], "'h300' is none of h200-llama8b"),
        ([], ["replay.devices=0"], "0 is less than 1"),
        ([], ["replay.storage_gib=5"], "storage needs a host tier; set cache.host_gib or cache.host_pages"),
        ([], ["replay.storage_gb=5"], "did you mean storage_gib?"),
        ([], ["schedule.use=nothing"], "nothing installed offers it"),
        (["--config", "missing.toml"], [], "missing.toml"),
    ],
)
def test_misuse_is_one_sentence(trace: Path, options: list[str], sets: list[str], words: str) -> None:
    told = refused(trace, *options, sets=sets)
    assert words in told


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    told = refused("missing.jsonl")
    assert told == "Error: missing.jsonl: the trace cannot be read (No such file or directory)"
