"""Reading traces: what becomes of good lines, and the sentence for each kind of bad one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import ConfigError
from stepwell.replay.trace import load

from .conftest import conversations, write

LINE = {"timestamp": 2000, "input_length": 700, "output_length": 5, "hash_ids": [3, 9]}


def test_a_mooncake_line_becomes_blocks_and_seconds(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [LINE, {**LINE, "timestamp": 500, "output_length": 0}])
    early, late = load(path)
    assert (early.at, late.at) == (0.0, 1.5)
    assert (early.output_length, late.output_length) == (1, 5)
    assert late.ids.tolist() == [3, 9]
    tokens = np.frombuffer(late.tokens(), dtype=np.int32)
    assert tokens.tolist() == [3] * 512 + [9] * 188
    assert [late.block_tokens(count) for count in range(3)] == [0, 512, 700]


def test_gzip_and_blank_lines_make_no_difference(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.jsonl", conversations(20))
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\n" + plain.read_bytes() + b"  \n"))
    for one, other in zip(load(plain), load(packed), strict=True):
        assert (one.at, one.tokens()) == (other.at, other.tokens())


def test_limit_and_speed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", conversations(20, gap_ms=300))
    assert len(load(path, limit=7)) == 7
    assert load(path, speed=2.0)[-1].at == pytest.approx(load(path)[-1].at / 2)


def test_text_is_four_bytes_a_token_and_keeps_equal_prefixes_equal(tmp_path: Path) -> None:
    said = "The water is deep. Ähre"
    lines = [
        {"timestamp": at * 1e6, "input": text, "output": "12345", "session_id": "s"}
        for at, text in enumerate((said, said + " Very.", ""))
    ]
    first, second, empty = load(write(tmp_path / "t.jsonl", lines))
    size = len(said.encode())
    assert (first.block, first.output_length, first.input_length) == (1, 2, -(-size // 4))
    assert second.tokens().startswith(first.tokens()[: size // 4 * 4])
    assert second.at == 1.0
    assert empty.input_length == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "t.jsonl: the trace holds no request"),
        ("\n \n", "t.jsonl: the trace holds no request"),
        (json.dumps(LINE) + "\n{not json}\n", "t.jsonl, line 2: not a request of a known trace format"),
        ('{"timestamp": 1}\n', "line 1: not a request of a known trace format (Object missing required field `input`)"),
        (json.dumps({**LINE, "hash_ids": [3]}), "line 1: 700 input tokens are 2 blocks of 512 tokens, but there are 1"),
        (json.dumps({**LINE, "input_length": 0, "hash_ids": []}), "line 1: 0 input tokens"),
        (json.dumps({**LINE, "hash_ids": [3, -1]}), "line 1: a hash id is outside 0 to"),
        (json.dumps({**LINE, "hash_ids": [3, 1 << 30]}), "line 1: a hash id is outside 0 to"),
        (json.dumps({**LINE, "hash_ids": [3, 1 << 70]}), "line 1: "),
        (
            json.dumps(LINE) + "\n" + json.dumps({**LINE, "timestamp": -1}),
            "line 2: not a request of a known trace format",
        ),
        (json.dumps({**LINE, "timestamp": -1}), "(Expected `float` >= 0"),
        (json.dumps({**LINE, "timestamp": float("nan")}), "line 1: not a request of a known trace format"),
        (json.dumps({**LINE, "routing_key": ""}), "(Expected `str` of length >= 1 - at `$.routing_key`)"),
        (json.dumps({**LINE, "tenant": ""}), "(Expected `str` of length >= 1 - at `$.tenant`)"),
        (json.dumps({**LINE, "priority": 1 << 63}), "`$.priority`)"),
        (json.dumps({**LINE, "priority": -(1 << 63) - 1}), "`$.priority`)"),
        (json.dumps({**LINE, "priority": 1 << 80}), "line 1: not a request of a known trace format"),
        (json.dumps({**LINE, "input_length": "700"}), "line 1: not a request of a known trace format"),
        ('{"timestamp": 1e999, "input": "a", "output": "b"}', "line 1: "),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError) as told:
        load(path)
    assert words in str(told.value)


def test_a_wrong_block_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does --block-tokens fit this trace\?"):
        load(write(tmp_path / "t.jsonl", [LINE]), block=64)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    broken = tmp_path / "t.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(broken)
    broken.write_bytes(gzip.compress(json.dumps(LINE).encode() * 50)[:-12])
    with pytest.raises(ConfigError, match="cannot be read"):
        load(broken)


def test_the_published_traces(published: Path) -> None:
    talks = load(published / "mooncake_conversation_trace.jsonl")
    assert (len(talks), sum(arrival.input_length for arrival in talks)) == (12_031, 144_793_823)
    for name, requests in (("lmcache_agent_miniswe", 402), ("lmcache_agent_taubench", 471)):
        assert len(load(published / f"{name}.jsonl.gz")) == requests
