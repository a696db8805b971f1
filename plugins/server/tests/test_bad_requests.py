"""Whatever is wrong with a request, the answer is a 4xx that names the field, and the engine sees nothing."""

from __future__ import annotations

import json
import math

import httpx
import openai
import pytest

from stepwell_server.body import Body, ChatBody, CompletionBody
from stepwell_server.refused import CHAT, COMPLETION
from stepwell_server.settings import ServerSettings

CHAT_OK = {"model": "well-1", "messages": [{"role": "user", "content": "hi"}]}
TEXT_OK = {"model": "well-1", "prompt": "hi"}
USER = {"role": "user", "content": "hi"}


def _part(part):
    return {"messages": [{"role": "user", "content": [part]}]}


# (changes to a good body, the field that the error has to name)
BOTH = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": "2"}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": 10**25}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "a"}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"stop": [None]}, "stop[0]"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"5": 10}}, "logit_bias"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [5, 260]}, "stop_token_ids[1]"),
    ({"stop_token_ids": "x"}, "stop_token_ids"),
    ({"priority": 2**63}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"routing_key": ""}, "routing_key"),
    ({"routing_key": "k" * 513}, "routing_key"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 7}, "cache_salt"),
    ({"cache_store": "no"}, "cache_store"),
    ({"cache_ttl": 0}, "cache_ttl"),
    ({"cache_ttl": -1}, "cache_ttl"),
    ({"cache_ttl": "1h"}, "cache_ttl"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"user": ["a"]}, "user"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"temprature": 1}, "temprature"),
    ({"guided_json": {}}, "guided_json"),
    ({"__proto__": {}}, "__proto__"),
    ({"": 1}, ""),
]
CHAT_ONLY = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [[]]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": 7, "content": "x"}]}, "messages[1].role"),
    ({"messages": [{**USER, "name": "bob"}]}, "messages[0].name"),
    ({"messages": [{**USER, "colour": "red"}]}, "messages[0].colour"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    (_part({"type": "text"}), "messages[0].content[0].text"),
    (_part("x"), "messages[0].content[0]"),
    (_part({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].input_audio"),
    (_part({"type": "image_url", "image_url": {"url": "x"}}), "messages[0].content[0].image_url"),
    (_part({"type": "video", "text": "x"}), "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"verbosity": "low"}, "verbosity"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
    ({"routing_key": ["a"]}, "routing_key"),
    ({"prompt": "x"}, "prompt"),
    ({"echo": True}, "echo"),
]
TEXT_ONLY = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [260]}, "prompt[0]"),
    ({"prompt": [[1, 2], [3, 999]]}, "prompt[1][1]"),
    ({"prompt": [[1, "x"]]}, "prompt[0][1]"),
    ({"prompt": [1, "x"]}, "prompt[0]"),
    ({"prompt": [["x"]]}, "prompt[0][0]"),
    ({"prompt": ["x"] * 129}, "prompt"),
    ({"prompt": "x" * 5000}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"echo": "x"}, "echo"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"routing_key": ["a", "b"]}, "routing_key"),
    ({"messages": [USER]}, "messages"),
    ({"tools": []}, "tools"),
]


@pytest.fixture(scope="module")
def shared(start):
    with start(ServerSettings(max_body_mib=0.0625)) as served, httpx.Client(base_url=served.url) as client:
        yield served, client


def _told(response, status=400):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 600
    return error


@pytest.mark.parametrize(("change", "field"), BOTH + CHAT_ONLY, ids=str)
def test_chat_names_the_field(shared, change, field):
    served, client = shared
    before = len(served.engine.seen)
    error = _told(client.post("/v1/chat/completions", json={**CHAT_OK, **change}))
    assert error["param"] == field
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(served.engine.seen) == before
    assert served.front.gate.waiting == 0


@pytest.mark.parametrize(("change", "field"), BOTH + TEXT_ONLY, ids=str)
def test_completion_names_the_field(shared, change, field):
    served, client = shared
    before = len(served.engine.seen)
    error = _told(client.post("/v1/completions", json={**TEXT_OK, **change}))
    assert error["param"] == field
    assert field in error["message"]
    assert len(served.engine.seen) == before


RAW = {
    "nothing": b"",
    "no json": b"hello",
    "cut": b'{"model": "well-1", "prompt": "a',
    "trailing": b'{"model":"well-1","prompt":"a"} x',
    "bad utf-8": b'{"model":"well-1","prompt":"\xff\xfe"}',
    "lone surrogate": b'{"model":"well-1","prompt":"\\ud800"}',
    "list": b"[1]",
    "null": b"null",
    "text": b'"x"',
    "nan": b'{"model":"well-1","prompt":"a","temperature":NaN}',
    "infinity": b'{"model":"well-1","prompt":"a","temperature":Infinity}',
    "deep": b'{"model":"well-1","prompt":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "quite deep": b'{"model":"well-1","prompt":' + b"[" * 900 + b"]" * 900 + b"}",
    "deep in a refused field": b'{"model":"well-1","prompt":"a","logit_bias":' + b'{"a":' * 900 + b"1" + b"}" * 901,
    "deep object": b'{"a":' * 10_000,
    "nul": b"\x00",
    "bom": b'\xef\xbb\xbf{"model":"well-1","prompt":"a"}',
    "utf-16": '{"model":"well-1","prompt":"a"}'.encode("utf-16"),
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_what_is_no_json_object_is_400(shared, raw, route):
    served, client = shared
    before = len(served.engine.seen)
    _told(client.post(route, content=raw, headers={"content-type": "application/json"}))
    assert len(served.engine.seen) == before


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400, "1" + "0" * 5000])
def test_a_number_beyond_every_type_is_named(shared, number):
    _, client = shared
    raw = b'{"model":"well-1","prompt":"a","temperature":%s}' % number.encode()
    error = _told(client.post("/v1/completions", content=raw))
    assert error["param"] == "temperature"


def test_statuses_other_than_400(shared):
    _, client = shared
    ok = json.dumps(TEXT_OK)
    assert _told(client.get("/v1/completions"), 405)["message"].startswith("GET /v1/completions")
    assert _told(client.delete("/v1/models"), 405)
    assert _told(client.get("/v1/embeddings"), 404)
    assert _told(client.post("/v1/responses", json={}), 404)
    assert _told(client.get("/"), 404)
    assert _told(client.get("/v1/../etc/passwd"), 404)
    assert _told(client.post("/v1/completions", content=ok, headers={"content-type": "text/plain"}), 415)
    assert _told(client.post("/v1/completions", content=ok, headers={"content-encoding": "gzip"}), 415)
    large = json.dumps({**TEXT_OK, "prompt": "x" * 70_000})
    assert _told(client.post("/v1/completions", content=large), 413)["code"] == "body_too_large"
    chunked = _told(client.post("/v1/completions", content=(b"x" * 10_000 for _ in range(10))), 413)
    assert "65536" in chunked["message"]
    utf8 = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/completions", content=ok, headers=utf8).is_success
    assert _told(client.post("/v1/completions", json={**TEXT_OK, "model": "gpt-4"}), 404)["code"] == "model_not_found"


def test_the_client_sees_its_own_error_classes(served):
    client = served.openai()
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**CHAT_OK, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as lost:
        client.chat.completions.create(model="gpt-4", messages=[USER])
    assert lost.value.code == "model_not_found"


def test_a_wrong_name_gets_a_suggestion(shared):
    _, client = shared
    error = _told(client.post("/v1/completions", json={**TEXT_OK, "temprature": 1}))
    assert "did you mean temperature?" in error["message"]


def test_values_that_ask_for_nothing_pass(shared):
    _, client = shared
    nothing = {field: values[0] if values else None for field, values in CHAT.items()}
    assert client.post("/v1/chat/completions", json={**CHAT_OK, **nothing}).is_success
    nothing = {field: values[0] if values else None for field, values in COMPLETION.items()}
    assert client.post("/v1/completions", json={**TEXT_OK, **nothing}).is_success


@pytest.mark.parametrize(
    ("route", "ok", "kind"), [("chat/completions", CHAT_OK, ChatBody), ("completions", TEXT_OK, CompletionBody)]
)
def test_every_optional_field_may_be_null(shared, route, ok, kind):
    _, client = shared
    nulls = dict.fromkeys(set(kind.__struct_fields__) - set(ok))
    assert client.post(f"/v1/{route}", json={**nulls, **ok}).is_success
    assert set(Body.__struct_fields__) < set(kind.__struct_fields__)


@pytest.mark.parametrize(
    "value", [math.nan, [], {}, "x", -1, 2**70, 1.5, True, [[[]]], {"a": {"b": []}}, "\u0000", "円" * 300]
)
def test_no_value_in_any_field_is_a_server_error(shared, value):
    _, client = shared
    for route, ok, kind in (("chat/completions", CHAT_OK, ChatBody), ("completions", TEXT_OK, CompletionBody)):
        for field in kind.__struct_fields__:
            raw = json.dumps({**ok, "max_tokens": 2, field: value})
            response = client.post(f"/v1/{route}", content=raw)
            assert response.status_code in (200, 400, 404), (field, response.text)
            if response.status_code != 200:
                _told(response, response.status_code)
