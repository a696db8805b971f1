"""What arrives at the engine is what the client asked for, for every child of a batch."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import openai
import pytest

from stepwell.cache.keys import namespace, page_digests
from stepwell.coerce import Secret
from stepwell.engine import wire
from stepwell.engine.messages import Hello, Submit
from stepwell.schedule.request import Request
from stepwell.types import Sampling
from stepwell_server.body import ChatBody, CompletionBody
from stepwell_server.errors import ApiError
from stepwell_server.prepare import Caller, Limits, Preparer, choice_seed
from stepwell_server.settings import ServerSettings

USER = {"role": "user", "content": "hi"}
FULL = {
    "model": "well-1",
    "max_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "n": 2,
    "stop": ["x", "y"],
    "seed": 11,
    "stream": True,
    "stream_options": {"include_usage": True},
    "presence_penalty": 0.25,
    "frequency_penalty": -0.25,
    "repetition_penalty": 1.5,
    "ignore_eos": True,
    "stop_token_ids": [3, 4],
    "priority": 5,
    "routing_key": "r",
    "cache_salt": "tenant-7",
    "cache_store": False,
    "cache_ttl": 60.5,
    "user": "u",
}
FULL_CHAT = {**FULL, "messages": [USER], "logprobs": True, "top_logprobs": 3}
FULL_TEXT = {**FULL, "prompt": ["first", "second", "third"], "logprobs": 3, "routing_key": ["a", "b", "a"]}
SPENT = {
    "safety_identifier": "the same as user",
    "prompt_cache_key": "a routing key where none is given",
    "max_completion_tokens": "the same as max_tokens",
    "echo": "needs no logprobs; in test_answers",
    "best_of": "only as n",
}
"""Fields that the full bodies cannot have, and why."""
HELLO = Hello("well-1", 4096, 260, (256,), 4, {}, False, "x")
HELLO_PARTS = {"model": "abc", "page_size": "16"}


@pytest.fixture(scope="module")
def prepare(start):
    with start() as served, ThreadPoolExecutor(1) as pool:
        hello = Hello("well-1", 4096, 260, (256,), 4, HELLO_PARTS, True, "x")

        def ask(body, headers=None, key=None, tenant="user"):
            preparer = Preparer(served.front.codec, Limits(128, None, tenant), pool)
            kind = ChatBody if "messages" in body else CompletionBody
            made = msgspec.convert(body, kind)
            work = preparer.chat if kind is ChatBody else preparer.completion
            return asyncio.run(work(made, hello, Caller(headers or {}, key)))

        yield ask


def test_b132_a_full_body_has_every_field():
    assert set(FULL_CHAT) | set(SPENT) >= set(ChatBody.__struct_fields__)
    assert set(FULL_TEXT) | set(SPENT) >= set(CompletionBody.__struct_fields__)


@pytest.mark.parametrize(
    ("body", "keys"), [(FULL_CHAT, ["r"]), (FULL_TEXT, ["a", "b", "a"])], ids=["chat", "completion"]
)
def test_b132_every_field_survives_batch_and_transport(prepare, body, keys):
    asked = prepare(body)
    sent = [message.request for message in wire.from_front(wire.encode([Submit(one) for one in asked.requests]))]
    assert len(sent) == len(keys) * 2
    space = namespace({**HELLO_PARTS, "salt": "tenant-7"})
    for i, request in enumerate(sent):
        assert request.sampling == Sampling(
            max_tokens=7,
            temperature=0.5,
            top_k=40,
            top_p=0.9,
            min_p=0.1,
            seed=choice_seed(11, i % 2),
            repetition_penalty=1.5,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
            logprobs=3,
            stop_ids=(3, 4),
            ignore_eos=True,
        )
        assert request.routing_key == keys[i // 2]
        assert request.priority == 5
        assert request.store is False
        assert request.ttl == 60.5
        assert request.tenant == "u"
        assert request.namespace == space
        assert request.digests == page_digests(space, request.tokens, 4)
    assert len({request.rid for request in sent}) == len(sent)
    assert asked.stop == ("x", "y")
    assert asked.stream
    assert asked.usage
    plain = Request(rid="", namespace=b"", tokens=b"")
    for name in Request.__struct_fields__:
        assert all(getattr(request, name) != getattr(plain, name) for request in sent), f"{name} was not exercised"
    for name in msgspec.structs.asdict(plain)["sampling"].__slots__:
        assert all(getattr(r.sampling, name) != getattr(Sampling(), name) for r in sent), f"{name} was not exercised"


def test_b132_a_routing_key_header_reaches_every_child(start):
    with start() as served, httpx.Client(base_url=served.url) as client:
        for header in ("x-stepwell-routing-key", "X-SMG-Routing-Key"):
            served.engine.seen.clear()
            client.post(
                "/v1/chat/completions", json={"model": "well", "messages": [USER], "n": 2}, headers={header: "k"}
            )
            client.post("/v1/completions", json={"model": "well", "prompt": ["a", "b"], "n": 2}, headers={header: "k"})
            assert [request.routing_key for request in served.engine.seen] == ["k"] * 6


@pytest.mark.parametrize("stream", [False, True])
def test_b132_what_headers_say_reaches_every_child_of_every_route(start, stream):
    headers = {"x-stepwell-routing-key": "k", "x-stepwell-priority": "-7", "x-stepwell-tenant": "t"}
    with start(ServerSettings(tenant="header")) as served, httpx.Client(base_url=served.url, headers=headers) as client:
        for path, asked in (
            ("chat/completions", {"messages": [USER]}),
            ("completions", {"prompt": ["a", "b", "c"]}),
            ("completions", {"prompt": [[1, 2], [3]]}),
        ):
            served.engine.seen.clear()
            answer = client.post(f"/v1/{path}", json={"model": "well", "n": 2, "stream": stream, **asked})
            assert answer.status_code == 200
            children = 2 * len(asked.get("prompt", "x"))
            placed = [(one.routing_key, one.priority, one.tenant) for one in served.engine.seen]
            assert placed == [("k", -7, "t")] * children


def test_b132_keys_of_a_batch_reach_the_right_children(start):
    with start() as served, httpx.Client(base_url=served.url) as client:
        client.post(
            "/v1/completions",
            json={"model": "well", "prompt": ["1", "2", "3"], "n": 2, "routing_key": ["a", "b", "a"]},
            headers={"x-stepwell-routing-key": "of the header"},
        )
        placed = {(one.tokens[0] - ord("0"), one.routing_key) for one in served.engine.seen}
        assert placed == {(1, "a"), (2, "b"), (3, "a")}
        wrong = client.post("/v1/completions", json={"model": "well", "prompt": ["1", "2"], "routing_key": ["a"]})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "routing_key")


def test_a_routing_key_of_the_body_wins_over_header_and_cache_key(prepare):
    body = {"model": "m", "messages": [USER], "prompt_cache_key": "c"}
    both = {"x-smg-routing-key": "h", "x-stepwell-routing-key": "own"}
    assert prepare(body).requests[0].routing_key == "c"
    assert prepare(body, {"x-smg-routing-key": "h"}).requests[0].routing_key == "h"
    assert prepare(body, both).requests[0].routing_key == "own"
    assert prepare(body, {**both, "x-stepwell-routing-key": ""}).requests[0].routing_key == "h"
    assert prepare({**body, "routing_key": "b"}, both).requests[0].routing_key == "b"


def test_a_name_is_the_same_whether_body_or_header_says_it(prepare):
    body = {"model": "m", "messages": [USER]}
    header = {"x-stepwell-routing-key": "Brunnenpl\u00e4tze".encode().decode("latin-1")}
    assert prepare(body, header).requests[0].routing_key == "Brunnenpl\u00e4tze"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-stepwell-routing-key": "k" * 513}, "x-stepwell-routing-key"),
        ({"x-smg-routing-key": "k" * 513}, "x-smg-routing-key"),
        ({"x-stepwell-tenant": "k" * 513}, "x-stepwell-tenant"),
        ({"x-stepwell-priority": "high"}, "x-stepwell-priority"),
        ({"x-stepwell-priority": "1.5"}, "x-stepwell-priority"),
        ({"x-stepwell-priority": str(2**63)}, "x-stepwell-priority"),
        ({"x-stepwell-priority": "9" * 5000}, "x-stepwell-priority"),
    ],
)
def test_headers_that_cannot_be_taken_are_refused_by_name(prepare, headers, param):
    with pytest.raises(ApiError) as refused:
        prepare({"model": "m", "messages": [USER]}, headers, tenant="header")
    assert (refused.value.status, refused.value.param) == (400, param)


def test_priority_has_64_bits_and_the_body_wins(prepare):
    body = {"model": "m", "messages": [USER]}
    for value in (-(2**63), 0, 2**63 - 1):
        assert prepare({**body, "priority": value}).requests[0].priority == value
        assert prepare(body, {"x-stepwell-priority": str(value)}).requests[0].priority == value
    assert prepare({**body, "priority": 0}, {"x-stepwell-priority": "9"}).requests[0].priority == 0
    with pytest.raises(msgspec.ValidationError, match="priority"):
        prepare({**body, "priority": 2**63})


@pytest.mark.parametrize(
    ("source", "whose"), [("user", "the user"), ("key", "ann"), ("header", "behind the proxy"), ("nothing", None)]
)
def test_whose_a_request_is_says_who_the_settings_believe(prepare, source, whose):
    headers = {"x-stepwell-tenant": "behind the proxy"}
    body = {"model": "m", "messages": [USER], "user": "the user"}
    assert prepare(body, headers, "ann", source).requests[0].tenant == whose


def test_a_key_has_a_name_that_its_requests_are_counted_under(start):
    keys = {"ann": Secret("a-key"), "bob": Secret("b-key")}
    with start(ServerSettings(api_key=Secret("common"), api_keys=keys, tenant="key")) as served:
        for key in ("a-key", "b-key", "common"):
            served.openai(api_key=key).chat.completions.create(model="well", messages=[USER], user="bob")
        assert [one.tenant for one in served.engine.seen] == ["ann", "bob", None]
        with pytest.raises(openai.AuthenticationError):
            served.openai(api_key="c-key").chat.completions.create(model="well", messages=[USER])


@pytest.mark.parametrize(
    "settings",
    [
        {"tenant": "key"},
        {"api_keys": {"ann": Secret("")}},
        {"api_keys": {"ann": Secret("x"), "bob": Secret("x")}},
        {"api_keys": {"ann": Secret("x")}, "api_key": Secret("x")},
        {"api_keys": {"ann": Secret("x")}, "admin_key": Secret("x")},
    ],
)
def test_keys_that_name_nobody_or_two_are_refused(settings):
    with pytest.raises(ValueError, match=r"^(tenant|api_keys|admin_key): "):
        ServerSettings(**settings)


def test_choices_differ_in_their_seeds_the_same_way_every_time(prepare):
    body = {"model": "m", "messages": [USER], "n": 4, "seed": 5}
    seeds = [request.sampling.seed for request in prepare(body).requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 4
    assert [request.sampling.seed for request in prepare(body).requests] == seeds
    assert all(0 <= choice_seed(-1, i) < 2**63 for i in range(4))
    assert all(request.sampling.seed is None for request in prepare({**body, "seed": None}).requests)


def test_salts_never_share_a_namespace_or_a_digest(prepare):
    salts = [None, "a", "b", "a ", "A"]
    asked = [prepare({"model": "m", "prompt": "the same words", "cache_salt": salt}).requests[0] for salt in salts]
    assert len({request.namespace for request in asked}) == len(salts)
    assert len({request.digests[:32] for request in asked}) == len(salts)
    assert asked[0].namespace == namespace(HELLO_PARTS)


def test_long_prompts_are_prepared_off_the_event_loop(prepare):
    text = "word " * 600
    asked = prepare({"model": "m", "prompt": [text, text[:-1]], "max_tokens": 1})
    assert [prompt.length for prompt in asked.prompts] == [3000, 2999]
    assert len(asked.requests[0].digests) == 3000 // 4 * 32


@pytest.mark.parametrize(("length", "wanted", "given"), [(100, None, 16), (4090, None, 6), (100, 3996, 3996)])
def test_a_completion_is_as_long_as_asked_or_sixteen_or_as_fits(prepare, length, wanted, given):
    asked = prepare({"model": "m", "prompt": "x" * length, "max_tokens": wanted})
    assert asked.requests[0].sampling.max_tokens == given


def test_a_chat_takes_what_the_context_leaves(prepare):
    asked = prepare({"model": "m", "messages": [USER]})
    assert asked.requests[0].sampling.max_tokens == 4096 - asked.prompts[0].length
    assert prepare({"model": "m", "messages": [USER], "max_completion_tokens": 9}).requests[0].sampling.max_tokens == 9


def test_a_chat_takes_no_more_than_the_device_holds(start):
    small = msgspec.structs.replace(HELLO, largest=200)
    with start(hello=small) as served:
        served.openai().chat.completions.create(model="well", messages=[USER])
        served.openai().completions.create(model="well", prompt="x" * 300)
        lengths = [(len(request.tokens) // 4, request.sampling.max_tokens) for request in served.engine.seen]
    assert lengths == [(20, 180), (300, 16)]


def test_a_prompt_that_fills_the_context_is_refused_by_its_length(prepare):
    with pytest.raises(ApiError) as refused:
        prepare({"model": "m", "prompt": "x" * 4096})
    assert refused.value.code == "context_length_exceeded"
    assert "4096" in refused.value.message


def test_defaults_are_those_of_the_api(prepare):
    sampling = prepare({"model": "m", "messages": [USER]}).requests[0].sampling
    assert sampling.temperature == 1.0
    assert sampling.top_p == 1.0
    assert prepare({"model": "m", "messages": [USER], "temperature": 0}).requests[0].sampling.temperature == 0
    assert prepare({"model": "m", "messages": [USER], "top_k": -1}).requests[0].sampling.top_k == 0


def test_request_ids_hold_nothing_of_the_request(prepare):
    rids = [request.rid for request in prepare(FULL_TEXT).requests]
    assert all(set(rid) <= set("0123456789abcdef-") for rid in rids)
