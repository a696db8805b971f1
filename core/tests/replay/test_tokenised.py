"""Text traces: what tokens their texts are, with a tokenizer and without, and that answers are found again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.config import Config, environment
from stepwell.errors import ConfigError
from stepwell.replay.arrivals import arrivals
from stepwell.replay.texts import Tokenised, packed
from stepwell.replay.trace import Arrival, load

from .conftest import refused, replay, write

START = 900
SIM = ("runner.use=sim", "replay.tokenizer=any")
PLACE = ("replay.preset=cpu-smollm2", "replay.devices=1", "cache.device_pages=4000")


def words(text: str) -> bytes:
    """A tokenizer with a start token: each word is a token."""
    return np.array([START, *(len(word) for word in text.split())], dtype=np.int32).tobytes()


def talk(turns: int = 10) -> list[dict[str, Any]]:
    """One session, each of whose prompts holds all that was said before."""
    said, lines = "You answer questions about wells.", []
    for turn in range(turns):
        said += f" Question {turn}: how deep is it?"
        answer = f" It is {turn * 7 + 11} metres deep, and the water is clear all the year round."
        lines.append({"timestamp": turn * 5_000_000, "input": said, "output": answer, "session_id": "s"})
        said += answer
    return lines


def read(path: Path, *sets: str) -> list[Arrival]:
    config = Config.load(None, environment(), sets)
    return arrivals(config, path)


def prompts(trace: Sequence[Arrival]) -> list[list[int]]:
    return [np.frombuffer(arrival.tokens(), dtype=np.int32).tolist() for arrival in trace]


def test_a_tokenizer_reads_prompt_and_answer(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input": "a well is deep", "output": "so it is"}
    (only,) = load(write(tmp_path / "t.jsonl", [line]), encode=words)
    assert prompts([only]) == [[START, 1, 4, 2, 4]]
    assert only.answer == (2, 2, 2)  # the start token is the prompt's alone
    assert (only.input_length, only.output_length, only.block) == (5, 3, 1)


def test_without_one_four_bytes_are_a_token_and_an_answer_is_known() -> None:
    """The token in which the answer begins holds bytes of both, as in the prompt that goes on behind."""
    tokens, answer = packed("abcdef", "ghijk")
    assert b"".join((tokens.tobytes(), answer.tobytes())) == b"abcdefghijk\0"
    assert (len(tokens), len(answer)) == (2, 1)
    later, _ = packed("abcdefghijk and on", "")
    assert later[:2].tolist() == tokens.tolist()
    assert [len(part) for part in packed("", "abcd")] == [1, 1]
    assert [len(part) for part in packed("", "")] == [1, 0]


def test_nothing_is_read_twice() -> None:
    asked: Counter[str] = Counter()

    def encode(text: str) -> bytes:
        asked[text] += 1
        return words(text)

    texts = Tokenised(encode)
    for _ in range(3):
        texts("one prompt", "its answer")
    assert asked == {"": 1, "one prompt": 1, "its answer": 1}


def test_an_empty_prompt_has_a_token() -> None:
    tokens, answer = Tokenised(lambda text: text.encode("utf-32-le"))("", "")
    assert (tokens.tolist(), answer.tolist()) == ([0], [])


@pytest.mark.parametrize("sets", [(), SIM])
def test_the_next_turn_hits_the_answer(tmp_path: Path, sets: tuple[str, ...]) -> None:
    path = write(tmp_path / "t.jsonl", talk())
    trace = read(path, *sets)
    document = replay(path, sets=(*PLACE, *sets, "cache.page_size=1"))
    before = sum(arrival.input_length + arrival.output_length - 1 for arrival in trace[:-1])
    assert document["all"]["hit_tokens"]["device"] == pytest.approx(before, abs=10)
    assert document["output_tokens"] == sum(arrival.output_length for arrival in trace)


def test_a_codec_is_that_of_the_runner_that_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", talk(2))
    trace = read(path, *SIM)
    assert prompts(trace)[0] == list(talk(1)[0]["input"].encode())
    document = replay(path, sets=(*PLACE, *SIM))
    assert document["setup"]["tokenizer"] == "any"
    assert replay(path, sets=PLACE)["setup"]["tokenizer"] == "four bytes a token"


def test_progress_is_told_line_by_line(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    path = write(tmp_path / "t.jsonl", talk(4))
    load(path, encode=words, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_text_that_is_none_names_its_line(tmp_path: Path) -> None:
    def encode(text: str) -> bytes:
        if "bad" in text:
            raise ValueError("the text is no valid Unicode")
        return words(text)

    lines = [*talk(1), {"timestamp": 1, "input": "bad", "output": ""}]
    with pytest.raises(ConfigError, match=r"t\.jsonl, line 2: the text is no valid Unicode"):
        load(write(tmp_path / "t.jsonl", lines), encode=encode)


def test_a_trace_of_ids_needs_none(trace: Path) -> None:
    told = refused(trace, sets=SIM)
    assert "a tokenizer is for traces of text, and this one has block ids; leave it out" in told


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["replay.tokenizer=smollm2"], "'smollm2' needs a runner that has a tokenizer: no plugin that is installed"),
        (["replay.tokenizer=x", "runner.use=nobody"], "replay.tokenizer (--set replay.tokenizer): runner.use"),
    ],
)
def test_misuse_is_one_sentence(tmp_path: Path, sets: list[str], words: str) -> None:
    path = write(tmp_path / "t.jsonl", talk(1))
    assert words in refused(path, sets=sets)
    assert json.loads(path.read_text())["session_id"] == "s"


@pytest.mark.slow
def test_smollm2_reads_what_it_would_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session read by a real tokenizer: fewer bytes a token than four would be no surprise, an answer lost would."""
    pytest.importorskip("stepwell_transformers")
    monkeypatch.setenv("STEPWELL_PLUGINS", "transformers")
    path = write(tmp_path / "t.jsonl", talk())
    try:
        trace = read(path, "replay.tokenizer=smollm2")
    except ConfigError as error:
        pytest.skip(f"its tokenizer is out of reach: {error}")
    text = talk()[-1]["input"]
    assert 3 < len(text.encode()) / trace[-1].input_length < 6
    document = replay(path, "--tokenizer", "smollm2", sets=(*PLACE, "cache.page_size=1"))
    said = sum(arrival.input_length + arrival.output_length - 1 for arrival in trace[:-1])
    assert document["setup"]["tokenizer"] == "smollm2"
    assert document["all"]["hit_tokens"]["device"] == pytest.approx(said, rel=0.02)
    told = refused(path, "--tokenizer", "smollm")
    assert told.startswith("Error: replay.tokenizer (--set replay.tokenizer): ")
    assert "did you mean smollm2?" in told
