"""Models with windows: what a config says, what of a prompt can be found again, and what is counted by group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.abc.evict import EvictionPolicy
from stepwell.builtin.lru import Lru
from stepwell.builtin.retain import Tail
from stepwell.builtin.writers import WriteThrough
from stepwell.cache.cache import Cache, CacheShape
from stepwell.replay.restorable import Restoring
from stepwell.types import Full, GroupSpec, Window

from .conftest import conversations, refused, replay, write
from .test_timed import timeless

MIXES = Path(__file__).resolve().parents[3] / "docs" / "pages" / "models"
TINY: dict[str, object] = {
    "model_type": "test",
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 17,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "dtype": "float32",
}
LAYER = 2 * (128 + 128) * 4
"""Bytes of a token in a layer: K and V of two heads."""
PAGE = 16
ROOMY = ("cache.page_size=16", "cache.device_pages=2000", "replay.preset=cpu-smollm2", "replay.devices=1")
TIGHT = (
    *("cache.page_size=16", "replay.preset=cpu-smollm2", "replay.devices=1", "write.use=write_through"),
    *("cache.device_gib=0.004", "cache.host_gib=0.008", "cache.typical_tokens=512", "engine.max_running=2"),
)
SCARCE = (
    *("cache.page_size=16", "replay.preset=cpu-smollm2", "replay.devices=1", "write.use=write_through"),
    *("cache.device_gib=0.004", "cache.host_gib=0.012", "cache.typical_tokens=160", "engine.max_running=2"),
)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return "tiny.json"


def prompt(at_ms: int, tokens: int, *blocks: int) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 1, "hash_ids": list(blocks)}


def small_conversations() -> list[dict[str, object]]:
    """As `conversations`, with blocks of 32 tokens."""
    lines = []
    for line in conversations(120):
        ids: Any = line["hash_ids"]
        length = len(ids) * 32 - int(str(line["input_length"])) % 32
        lines.append({**line, "input_length": length})
    return lines


def test_groups_and_bytes_are_those_of_the_config(trace: Path, tiny: str) -> None:
    document = replay(trace, "--model", tiny, "--limit", "20", sets=ROOMY)
    full, swa = document["groups"]["full"], document["groups"]["swa"]
    assert (full["layers"], full["token_bytes"], full["page_bytes"]) == (1, LAYER, PAGE * LAYER)
    assert (swa["layers"], swa["token_bytes"], swa["page_bytes"]) == (2, 2 * LAYER, PAGE * 2 * LAYER)
    assert document["bytes_baseline"]["recomputed"] == document["computed_tokens"] * 3 * LAYER
    assert (document["setup"]["model"], document["setup"]["windows"]) == (tiny, True)
    assert document["finished"] == 20


def test_a_folder_and_the_config_file_say_the_same(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"text_config": TINY}))
    by_option = replay(trace, "--model", "model", "--limit", "20", sets=ROOMY)
    by_setting = replay(trace, "--limit", "20", sets=(*ROOMY, "replay.model=model"))
    assert timeless(by_option) == timeless(by_setting)


@pytest.mark.parametrize(
    ("sets", "hits"),
    [
        (["cache.groups.swa.device_pages=8"], [0, 0, 64, 0]),
        (["replay.windows=false"], [0, 0, 64, 32]),
    ],
)
def test_a_window_is_kept_at_the_end_and_not_on_the_way(tmp_path: Path, tiny: str, sets: list[str], hits: Any) -> None:
    """Blocks of 32 tokens, pages of 16, a window of 16 tokens of history, eight pages for windows.

    The first request leaves five of them; the second takes three that are free and the first's three that no end needs.
    The first prompt again has its window one page below its end, 64 tokens, the most that leave one to compute. A
    prompt that leaves it at 32 tokens finds all pages of full attention and no window.
    """
    asked = [(1, 2, 3), (4, 5, 6), (1, 2, 3), (1, 7, 8)]
    path = write(tmp_path / "t.jsonl", [prompt(at * 9000, 80, *ids) for at, ids in enumerate(asked)])
    options = ("--model", tiny, "--block-tokens", "32")
    sums = [
        sum(replay(path, *options, "--limit", str(n), sets=(*ROOMY, *sets))["all"]["hit_tokens"].values())
        for n in (1, 2, 3, 4)
    ]
    assert [after - before for before, after in zip([0, *sums], sums, strict=False)] == hits


def test_moved_bytes_by_group_sum_up(tmp_path: Path, tiny: str) -> None:
    path = write(tmp_path / "t.jsonl", small_conversations())
    sets = (*TIGHT, "replay.storage_gib=0.4")
    document = replay(path, "--model", tiny, "--block-tokens", "32", sets=sets)
    groups = document["groups"]
    for direction, nbytes in document["bytes_moved"].items():
        assert nbytes > 0, direction
        assert sum(group["bytes_moved"][direction] for group in groups.values()) == nbytes, direction
    for group in groups.values():
        for tier, pages in (("device", group["device_pages"]), ("host", group["host_pages"])):
            assert 0 < group["held"][tier]["pages"] <= pages
            assert group["held"][tier]["bytes"] == group["held"][tier]["pages"] * group["page_bytes"]
        assert group["held"]["storage"]["pages"] > 0
    stored = sum(group["held"]["storage"]["bytes"] for group in groups.values())
    assert 0 < stored <= 0.4 * 2**30


def test_windows_leave_room_for_more_requests(tmp_path: Path, tiny: str) -> None:
    """Prompts of ten pages that come again much later: ten pages of three layers, or ten of one and two of two."""
    asked = [number for at in range(60) for number in (at, at - 16) if number >= 0]
    lines = [prompt(at * 2000, 160, *range(number * 5, number * 5 + 5)) for at, number in enumerate(asked)]
    path = write(tmp_path / "t.jsonl", lines)
    options = ("--model", tiny, "--block-tokens", "32", "--ablate")
    parts = replay(path, *options, sets=(*SCARCE, "replay.restorable_every=40"))["variants"]
    windows, full = parts["as configured"], parts["windows as full"]
    assert list(full["groups"]) == ["full"]
    assert full["groups"]["full"]["token_bytes"] == 3 * LAYER
    assert windows["restorable"]["last"] > 1.5 * full["restorable"]["last"] > 0
    assert windows["restorable"]["mean"] > 1.5 * full["restorable"]["mean"]
    assert len(windows["restorable"]["samples"]) == len(asked) // 40 + 1
    assert sum(full["all"]["hit_tokens"].values()) == 0
    assert sum(windows["all"]["hit_tokens"].values()) > 5 * 144


def test_everything_is_restorable_where_there_is_room(tmp_path: Path, tiny: str) -> None:
    lines = [prompt(at * 5000, n, *ids) for at, (n, ids) in enumerate([(64, (1, 2)), (96, (1, 2, 3)), (70, (4, 5, 6))])]
    path = write(tmp_path / "t.jsonl", lines)
    document = replay(path, "--model", tiny, "--block-tokens", "32", sets=ROOMY)
    assert document["restorable"] == {"last": 3, "mean": 3.0, "every": 1000, "samples": [3]}
    assert "restorable" not in replay(path, "--block-tokens", "32", sets=["replay.devices=1"])


def test_restoring_asks_the_cache_and_changes_nothing() -> None:
    """Three requests of two pages in a cache of five: the first has lost its last page."""
    groups = (GroupSpec("full", Full(), 4, (0,)), GroupSpec("swa", Window(1), 4, (1,)))
    cache = Cache(CacheShape(groups, 2, (5, 9), (0, 0)), evict=_lru, write=WriteThrough(), retain=Tail())
    prompts = [bytes([n, 0, 0, 0]) * 4 for n in (1, 2, 3)]
    restoring = Restoring(cache, bytes(32), 2, prompts.__getitem__)
    for number, tokens in enumerate(prompts):
        lease = cache.admit(bytes(32), tokens, lambda matched: 4)
        assert lease is not None
        cache.publish(lease, tokens, final=True)
        cache.close(lease)
        restoring.finished(number)
    version = cache.version
    found = restoring.end()
    there = [cache.probe(bytes(32), tokens + bytes(4)) for tokens in prompts]
    assert there == [2, 4, 4] or there == [0, 4, 4]
    assert found.samples == [2, there.count(4)]
    assert (found.last, found.mean) == (2, 2.0)
    assert cache.version == version


def _lru(*_: object) -> EvictionPolicy:
    return Lru()


def test_answers_are_found_in_the_next_turn(tmp_path: Path, tiny: str) -> None:
    """The second turn has the first's 40 tokens, its answer of 24, and 36 more. Computed were all of the 64 but the
    last, which are three whole pages; without answers the prompts are alike up to the second."""
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": 24, "hash_ids": [1, 2]},
        {"timestamp": 9000, "input_length": 100, "output_length": 1, "hash_ids": [1, 3, 4, 5]},
    ]
    path = write(tmp_path / "t.jsonl", lines)
    plain = replay(path, "--model", tiny, "--block-tokens", "32", sets=ROOMY)
    told = replay(path, "--model", tiny, "--block-tokens", "32", "--with-answers", sets=ROOMY)
    assert sum(plain["all"]["hit_tokens"].values()) == 32
    assert sum(told["all"]["hit_tokens"].values()) == 63 // PAGE * PAGE == 48


def test_two_runs_are_equal(tmp_path: Path, tiny: str) -> None:
    path = write(tmp_path / "t.jsonl", small_conversations())
    options = ("--model", tiny, "--block-tokens", "32", "--with-answers", "--limit", "60")
    assert timeless(replay(path, *options, sets=TIGHT)) == timeless(replay(path, *options, sets=TIGHT))


@pytest.mark.parametrize("mix", ["gpt-oss-like", "gemma-3-like", "mimo-like"])
def test_the_mixes_of_the_docs_run(trace: Path, mix: str) -> None:
    sets = ("replay.devices=8", "cache.page_size=64")
    document = replay(trace, "--model", str(MIXES / f"{mix}.json"), "--limit", "20", sets=sets)
    assert document["finished"] == 20
    assert set(document["groups"]) == {"full", "swa"}


@pytest.mark.parametrize(
    ("mix", "block", "page"), [("gpt-oss-like", 512, 128), ("gemma-3-like", 512, 512), ("mimo-like", 96, 96)]
)
@pytest.mark.parametrize("windows", ["true", "false"])
def test_unless_said_otherwise_no_page_is_longer_than_the_shortest_window(
    tmp_path: Path, mix: str, block: int, page: int, windows: str
) -> None:
    path = write(tmp_path / "t.jsonl", [prompt(0, 2 * block, 1, 2)])
    options = ("--model", str(MIXES / f"{mix}.json"), "--block-tokens", str(block))
    document = replay(path, *options, sets=("replay.devices=8", f"replay.windows={windows}"))
    assert document["setup"]["page_size"] == page


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "model.json cannot be read (No such file or directory); give a model's config.json"),
        ("{", "model.json is no JSON"),
        ("[]", "is no model's config: it holds no table of fields"),
        ({"layer_types": ["linear_attention"] * 3}, "layer 0 is a layer of linear_attention, which keeps no K and V"),
        ({"vocab_size": None}, "the config says no vocab_size"),
        ({"num_experts": 8}, "the config has 8 experts, and does not say num_experts_per_tok"),
        ({"intermediate_size": 10**9}, "GB for weights and pages; set replay.devices to "),
    ],
)
def test_a_model_that_cannot_be_is_one_sentence(trace: Path, tmp_path: Path, config: object, words: str) -> None:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps({**TINY, **dict(config)})  # type: ignore[call-overload]
        (tmp_path / "model.json").write_text(text)
    told = refused(trace, "--model", "model.json")
    assert words in told
    assert told.startswith("Error: replay.model (--set replay.model)")


def test_what_does_not_go_together(trace: Path, tmp_path: Path, tiny: str) -> None:
    assert "leave --instant or --model out" in refused(trace, "--model", tiny, "--instant")
    lines = [{"timestamp": 0, "input": "Hello there.", "output": "Yes.", "session_id": "a"}]
    text = write(tmp_path / "text.jsonl", lines)
    assert "leave it out for this one, which has text" in refused(text, "--with-answers")
