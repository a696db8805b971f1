"""What a replay says of requests and steps, worked out by hand, and what lines of a trace say beside their tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell.abc.runner import Row, StepPlan
from stepwell.replay.result import Hits, Result
from stepwell.replay.seen import Steps
from stepwell.replay.trace import load

from .conftest import conversations, refused, replay, write

ONE = ("replay.preset=polynomial", "cache.device_pages=100")


def line(at_ms: int, blocks: Sequence[int], output: int, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": at_ms,
        "input_length": 512 * len(blocks),
        "output_length": output,
        "hash_ids": list(blocks),
        **more,
    }


def prefill(tokens: int) -> float:
    return (4.209989e-07 * tokens**2 + 1.518344e-02 * tokens + 16.50142) / 1e3


def decode(context: float) -> float:
    share = context / 51_200
    return max(1.0, -25.74 * share**2 + 54.01 * share + 5.74) / 1e3


def test_one_request_on_the_polynomial_clock(tmp_path: Path) -> None:
    document = replay(write(tmp_path / "t.jsonl", [line(0, [1, 2], 11)]), sets=ONE)
    assert document["ttft_s"]["mean"] == pytest.approx(prefill(1024), abs=1e-6)
    steps = sum(decode(1024 + step) for step in range(1, 11))
    assert document["latency_s"]["mean"] == pytest.approx(prefill(1024) + steps, abs=1e-6)
    assert document["decode_step_s"] == pytest.approx(steps / 10, rel=1e-6)
    assert document["waits_s"]["p100"] == document["worst_wait_s"] == 0
    assert document["setup"]["devices"] == 1
    assert document["gpu_seconds"] == pytest.approx(document["latency_s"]["mean"], abs=1e-6)


def test_the_queue_time_ends_with_the_first_admission(tmp_path: Path) -> None:
    """One at a time: the second waits until the first has ended, the third for both."""
    lines = [line(0, [1], 5), line(10, [2], 5), line(20, [3], 5)]
    document = replay(write(tmp_path / "t.jsonl", lines), sets=(*ONE, "engine.max_running=1"))
    whole = prefill(512) + sum(decode(512 + step) for step in range(1, 5))
    waits = [0.0, whole - 0.010, 2 * whole - 0.020]
    assert document["waits_s"]["mean"] == pytest.approx(sum(waits) / 3, abs=1e-4)
    assert document["worst_wait_s"] == pytest.approx(waits[2], abs=1e-4)
    assert document["throughput"]["output_tokens_s"] == pytest.approx(15 / (3 * whole), rel=1e-3)
    assert document["throughput"]["requests_s"] == pytest.approx(3 / (3 * whole), rel=1e-3)


def test_the_worst_passes_are_told_and_priorities_arrive(tmp_path: Path) -> None:
    """While the first runs, the second is passed by two that are more urgent."""
    lines = [line(0, [1], 50), line(1, [2], 5), *(line(2, [number], 5, priority=1) for number in (3, 4))]
    document = replay(write(tmp_path / "t.jsonl", lines), sets=(*ONE, "engine.max_running=1"))
    assert document["passes_worst"] == 2
    plain = [{**one, "priority": 0} for one in lines]
    assert replay(write(tmp_path / "p.jsonl", plain), sets=(*ONE, "engine.max_running=1"))["passes_worst"] == 0


def test_a_retracted_request_waited_once(tmp_path: Path) -> None:
    lines = [{**one, "output_length": 1800, "timestamp": 0} for one in conversations(40)]
    sets = ("replay.devices=1", "cache.device_pages=60")
    document = replay(write(tmp_path / "t.jsonl", lines), sets=sets)
    assert document["retractions"] > 0
    assert document["waits_s"]["p100"] < document["latency_s"]["p100"]
    assert document["worst_wait_s"] <= document["ttft_s"]["p100"]


def plan(*chunks: int, answers: int = 0) -> StepPlan:
    rows = [Row(slot, 9, 1, None, True) for slot in range(answers)]
    rows += [Row(answers + at, 0, count, b"\0" * 4 * count, True) for at, count in enumerate(chunks)]
    return StepPlan(1, rows=tuple(rows))


def told(*plans: StepPlan) -> Result:
    steps, result = Steps(None), Result(Hits(), Hits())
    for one in plans:
        steps.done(one, 1, 0.5, None)
    steps.tell(result)
    return result


def test_padding_and_spread_are_of_the_chunks_of_each_step() -> None:
    result = told(plan(100, 300, answers=3), plan(500), plan(40, 40), plan(answers=2))
    assert result.computed_tokens == 980
    assert result.padding_share == pytest.approx(200 / 1180)
    assert result.chunk_spread == pytest.approx((0.5 + 0.0) / 2)
    assert (result.steps, result.decode_step_s) == (4, 0.5)


def test_steps_of_equal_chunks_have_no_padding() -> None:
    result = told(plan(7, 7, 7), plan(9))
    assert (result.padding_share, result.chunk_spread) == (0, 0)
    assert (told().padding_share, told(plan(answers=1)).chunk_spread) == (0, 0)


def test_lines_say_key_tenant_and_priority(tmp_path: Path) -> None:
    more = {"routing_key": "k", "tenant": "t", "priority": 3}
    first, second = load(write(tmp_path / "t.jsonl", [line(0, [1], 1, **more), line(1, [2], 1)]))
    assert (first.routing_key, first.tenant, first.priority) == ("k", "t", 3)
    assert (second.routing_key, second.tenant, second.priority) == (None, None, 0)
    text = {"timestamp": 0, "input": "a well", "output": "", **more}
    (only,) = load(write(tmp_path / "u.jsonl", [text]))
    assert (only.routing_key, only.tenant, only.priority) == ("k", "t", 3)


@pytest.mark.parametrize("more", [{"routing_key": 7}, {"tenant": []}, {"priority": "high"}, {"priority": 1.5}])
def test_fields_of_another_type_are_named(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(line(0, [1], 1, **more)))
    assert f"line 1: not a request of a known trace format (Expected `{_type(more)}" in refused(path)


def _type(more: dict[str, Any]) -> str:
    return "int" if "priority" in more else "str | null"


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["replay.preset=polynomial", "replay.model=x.json"], "the preset polynomial knows no model's arithmetic"),
        (["replay.preset=poly"], "is none of h200-llama8b"),
        (
            ["replay.preset=polynomial", "replay.devices=2"],
            "replay.devices (--set replay.devices): the preset polynomial",
        ),
    ],
)
def test_misuse_is_one_sentence(trace: Path, sets: list[str], words: str) -> None:
    assert words in refused(trace, sets=sets)
