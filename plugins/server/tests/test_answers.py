"""The official client against the routes, whole and streamed."""

from __future__ import annotations

import asyncio

import openai
import pytest

ASK = {"model": "well-1", "messages": [{"role": "user", "content": "hi"}]}
PROMPT_TOKENS = len("<user>hi\n<assistant>")


def test_chat(served):
    answer = served.openai().chat.completions.create(**ASK)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello from the well."
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "well-1"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith("fp_")
    assert answer.usage.prompt_tokens == PROMPT_TOKENS


def test_chat_stream(served):
    stream = served.openai().chat.completions.create(**ASK, stream=True)
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello from the well."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_completion_and_its_stream(served):
    client = served.openai()
    answer = client.completions.create(model="well-1", prompt="a", max_tokens=100)
    assert answer.choices[0].text == "Hello from the well."
    assert answer.object == "text_completion"
    chunks = list(client.completions.create(model="well-1", prompt="a", max_tokens=100, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello from the well."
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_completion_answers_sixteen_tokens_by_default(served):
    answer = served.openai().completions.create(model="well-1", prompt="a")
    assert answer.choices[0].text == "Hello from the w"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16


def test_async_client(served):
    async def ask() -> list[str]:
        async with served.async_openai() as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(8)))
            stream = await client.chat.completions.create(**ASK, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return [answer.choices[0].message.content for answer in answers] + ["".join(streamed)]

    assert asyncio.run(ask()) == ["Hello from the well."] * 9


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_choices_keep_their_places(start, stream):
    def script(request):
        return (*b"answer to ", *bytes(request.tokens[::4]), 256)

    with start(script=script) as served:
        ask = {"model": "well-1", "prompt": ["a", "b", "c"], "n": 2, "max_tokens": 50}
        texts = {i: "" for i in range(6)}
        if stream:
            for chunk in served.openai().completions.create(**ask, stream=True):
                texts[chunk.choices[0].index] += chunk.choices[0].text
        else:
            for choice in served.openai().completions.create(**ask).choices:
                texts[choice.index] = choice.text
    assert [texts[i] for i in range(6)] == [f"answer to {prompt}" for prompt in "aabbcc"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_answer_and_abort_the_rest(start, script, stream):
    with start(script=script("one two STOP three" * 50), step_s=0.001) as served:
        ask = {**ASK, "stop": ["STOP", "never"]}
        if stream:
            ask |= {"stream": True, "stream_options": {"include_usage": True}}
            chunks = list(served.openai().chat.completions.create(**ask))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
            finish, usage = chunks[-2].choices[0].finish_reason, chunks[-1].usage
        else:
            answer = served.openai().chat.completions.create(**ask)
            text, finish, usage = answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage
        assert text == "one two "
        assert finish == "stop"
        assert usage.completion_tokens == len("one two STOP")
        assert not served.engine.running


def test_text_that_only_begins_like_a_stop_string_comes_out_at_the_end(start, script):
    with start(script=script("one STO")) as served:
        answer = served.openai().chat.completions.create(**ASK, stop="STOP")
    assert answer.choices[0].message.content == "one STO"


def test_characters_are_never_split(start, script):
    with start(script=script("für 円 🙂 x")) as served:
        chunks = list(served.openai().chat.completions.create(**ASK, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == "für 円 🙂 x"
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_belong_to_the_text(start, script, stream):
    with start(script=script("ab STOP cd")) as served:
        ask = {**ASK, "logprobs": True, "top_logprobs": 2, "stop": "STOP"}
        if stream:
            chunks = list(served.openai().chat.completions.create(**ask, stream=True))
            content = [one for c in chunks if c.choices[0].logprobs for one in c.choices[0].logprobs.content]
        else:
            content = served.openai().chat.completions.create(**ask).choices[0].logprobs.content
    assert [one.token for one in content] == ["a", "b", " "]
    assert content[0].bytes == [ord("a")]
    assert content[0].logprob == -0.5
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("a", -0.5), ("b", -1.5)]


def test_completion_logprobs(start, script):
    with start(script=script("xyz")) as served:
        found = served.openai().completions.create(model="well-1", prompt="a", logprobs=1).choices[0].logprobs
    assert found.tokens == ["x", "y", "z"]
    assert found.token_logprobs == [-0.5] * 3
    assert found.top_logprobs == [{"x": -0.5}, {"y": -0.5}, {"z": -0.5}]
    assert found.text_offset == [0, 1, 2]


def test_no_logprobs_unless_asked(served):
    assert served.openai().chat.completions.create(**ASK).choices[0].logprobs is None
    assert served.openai().completions.create(model="well-1", prompt="a").choices[0].logprobs is None


def test_echo(served):
    client = served.openai()
    answer = client.completions.create(model="well-1", prompt="say ", echo=True, max_tokens=5)
    assert answer.choices[0].text == "say Hello"
    chunks = client.completions.create(model="well-1", prompt=[115, 97, 121, 32], echo=True, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "say Hello"


def test_token_prompts(served):
    client = served.openai()
    client.completions.create(model="well-1", prompt=[104, 105])
    client.completions.create(model="well-1", prompt=[[104], [105, 106]])
    assert [bytes(request.tokens[::4]) for request in served.engine.seen] == [b"hi", b"h", b"ij"]


def test_models(served):
    client = served.openai()
    assert [model.id for model in client.models.list()] == ["well-1"]
    assert client.models.retrieve("well-1").id == "well-1"
    assert client.models.retrieve("well").owned_by == "stepwell"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_an_answered_message_can_be_sent_back(served):
    client = served.openai()
    message = client.chat.completions.create(**ASK).choices[0].message
    again = {"model": "well-1", "messages": [*ASK["messages"], message, {"role": "user", "content": "more"}]}
    assert client.chat.completions.create(**again).choices[0].message.content


def test_parts_of_text_are_joined(served):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    served.openai().chat.completions.create(model="well", messages=[{"role": "user", "content": parts}])
    assert bytes(served.engine.seen[0].tokens[::4]) == b"<user>one\ntwo\n<assistant>"
