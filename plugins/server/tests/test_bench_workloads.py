"""What the bench asks: lengths, what is shared and what is not, and that a seed says all of it."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest

from stepwell.errors import ConfigError
from stepwell_server.bench.asks import Answer, Ask, Language, Span, ids_of
from stepwell_server.bench.workloads import Lengths, Sessions, Shared, Trace, Unshared

TEN = Lengths(10, 10)
THREE = Lengths(3, 3)
LANGUAGE = Language(1000)


def prompts(workload, salt="s", client=0, number=4):
    return [LANGUAGE.tokens(ask) for ask in islice(workload.asks(salt, client), number)]


def common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    pairs = zip(ids_of(one), ids_of(other), strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)) // 4)


def test_ids_stay_clear_of_special_tokens_and_follow_from_the_key():
    ids = ids_of(LANGUAGE.tokens(Ask((Span("a", 5000),), 1)))
    assert len(ids) == 5000
    assert min(ids) >= 125
    assert max(ids) < 875
    assert LANGUAGE.tokens(Ask((Span("a", 10),), 1)) == Language(1000).tokens(Ask((Span("a", 10),), 1))
    whole, part = (LANGUAGE.tokens(Ask((Span("a", count),), 1)) for count in (512, 77))
    assert whole[: len(part)] == part  # so the last, partial block of a trace is a prefix of the whole one


def test_text_has_as_many_words_as_make_the_tokens():
    ask = Ask((Span("a", 100),), 1)
    assert len(Language(1000, 0.75).text(ask).split()) == 75
    assert len(LANGUAGE.text(ask).split()) == 100


def test_a_conversation_alternates():
    said = (Span("a", 2), Span("b", 2), Answer(text="yes"), Span("c", 1))
    messages = LANGUAGE.messages(Ask(said, 1))
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert len(messages[0]["content"].split()) == 4
    assert messages[1]["content"] == "yes"


def test_random_prompts_share_nothing():
    workload = Unshared(Lengths(50, 60), Lengths(3, 5))
    found = [prompt for client in range(3) for prompt in prompts(workload, client=client)]
    assert all(50 <= len(one) // 4 <= 60 for one in found)
    assert max(common(one, other) for one in found for other in found if one is not other) < 3
    assert prompts(workload) == prompts(workload)
    assert prompts(workload) != prompts(workload, salt="another level")
    assert all(3 <= ask.output <= 5 for ask in islice(workload.asks("s", 0), 20))
    assert workload.longest == 65


def test_groups_share_their_prefix_and_levels_share_none():
    workload = Shared(2, 40, TEN, THREE)
    found = [prompt for client in range(8) for prompt in prompts(workload, client=client)]
    assert len({one[: 40 * 4] for one in found}) == 2
    assert len(set(found)) == len(found)
    assert {one[:160] for one in found}.isdisjoint(one[:160] for one in prompts(workload, salt="another level"))
    assert workload.longest == 53


def test_a_session_goes_on_with_its_answers_and_begins_anew():
    asks = Sessions(3, TEN, THREE).asks("s", 0)
    answer = Answer(tokens=b"\1\0\0\0" * 3)
    first = asks.send(None)
    turns = [first, *(asks.send(answer) for _ in range(3))]
    lengths = [len(LANGUAGE.tokens(ask)) // 4 for ask in turns]
    assert lengths == [10, 23, 36, 10]
    assert LANGUAGE.tokens(turns[1]).startswith(LANGUAGE.tokens(first) + answer.tokens)
    assert common(LANGUAGE.tokens(turns[3]), LANGUAGE.tokens(first)) < 3
    assert len(asks.send(None).said) == 1  # the turn failed, so its session is over


def written(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_shares_its_blocks(tmp_path):
    lines = [
        {"timestamp": 1000, "input_length": 9, "output_length": 2, "hash_ids": [1, 2, 3]},
        {"timestamp": 1500, "input_length": 8, "output_length": 0, "hash_ids": [1, 2]},
    ]
    trace = Trace.read(written(tmp_path, lines), 4, None)
    assert [one.at for one in trace.arrivals] == [0.0, 0.5]
    first, second = (LANGUAGE.tokens(trace.ask("s", one)) for one in trace.arrivals)
    assert (len(first) // 4, len(second) // 4) == (9, 8)
    assert common(first, second) == 8
    assert [ask.output for ask in trace.asks("s", 0)] == [2, 1]
    assert list(trace.asks("s", 1)) == []  # all were taken
    assert len(Trace.read(written(tmp_path, lines), 4, 1).arrivals) == 1


def test_a_trace_without_hash_ids_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no hash_ids"):
        Trace.read(written(tmp_path, [{"timestamp": 0, "input": "hello", "output": "x"}]), 512, None)


def test_lengths_are_drawn_from_all_of_the_range():
    dice = random.Random(0)
    assert {Lengths(3, 5).draw(dice) for _ in range(100)} == {3, 4, 5}
