"""Token counts add up on every route, in every mode."""

from __future__ import annotations

import itertools

import pytest

from stepwell.types import Cached

PROMPT = 11
ANSWER = 5


@pytest.fixture(scope="module")
def counted(start, script):
    with start(script=script("x" * 100), cached=Cached(device=4, host=2, storage=1)) as served:
        yield served.openai()


@pytest.mark.parametrize(
    ("route", "stream", "include", "n"),
    [
        case
        for case in itertools.product(("chat", "completions"), (False, True), (None, False, True), (1, 2))
        if case[1] or case[2] is None
    ],
)
def test_b139_usage(counted, route, stream, include, n):
    chat = "<user>\n<assistant>"
    ask = {"model": "well", "max_tokens": ANSWER, "n": n, "stream": stream}
    if include is not None:
        ask["stream_options"] = {"include_usage": include}
    if route == "chat":
        prompt = len(chat) + 3
        answer = counted.chat.completions.create(**ask, messages=[{"role": "user", "content": "abc"}])
    else:
        prompt = PROMPT
        answer = counted.completions.create(**ask, prompt="x" * PROMPT)
    if not stream:
        usage = answer.usage
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * n
    else:
        chunks = list(answer)
        told = [chunk for chunk in chunks if chunk.usage is not None]
        assert len(told) == (1 if include else 0)
        if not include:
            assert all(chunk.choices for chunk in chunks)
            return
        assert told[0] is chunks[-1]
        assert told[0].choices == []
        usage = told[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, ANSWER * n)
    assert usage.total_tokens == prompt + ANSWER * n
    assert usage.prompt_tokens_details.cached_tokens == 7
    assert usage.prompt_tokens_details.stepwell == {"device": 4, "host": 2, "storage": 1}


def test_usage_sums_over_prompts(counted):
    usage = counted.completions.create(model="well", prompt=["aaaaaaaa", "bb"], n=2, max_tokens=3).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (10, 12)
    assert usage.prompt_tokens_details.cached_tokens == 14
