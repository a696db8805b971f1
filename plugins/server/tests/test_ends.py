"""However an answer ends, the client is told and the engine is freed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time

import httpx
import openai
import pytest

from stepwell_server.settings import ServerSettings

ASK = {"model": "well", "messages": [{"role": "user", "content": "hi"}]}


def _head(body):
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()


def _connect(served):
    return socket.create_connection(httpx.URL(served.url).netloc.decode().rsplit(":"))


def _until(what, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def endless(start, script):
    with start(script=script("tick " * 10_000), step_s=0.005) as served:
        yield served


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_b133_a_client_that_leaves_frees_everything(endless, n, stream):
    body = json.dumps({**ASK, "stream": stream, "n": n}).encode()
    with _connect(endless) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        assert _until(lambda: len(endless.engine.running) == n)
        if stream:
            assert raw.recv(100)
    assert _until(lambda: not endless.engine.running)
    assert len(endless.engine.aborted) == n
    assert endless.front.gate.waiting == 0


def test_b133_a_client_that_leaves_while_its_request_waits_frees_it(start, script):
    with start(script=script("tick " * 10_000), step_s=0.005, slots=1) as served:
        with served.openai().chat.completions.create(**ASK, stream=True) as first:
            next(iter(first))
            with pytest.raises(openai.APITimeoutError):
                served.openai(timeout=0.2).chat.completions.create(**ASK)
            assert _until(lambda: len(served.engine.running) == 1)
        assert _until(lambda: not served.engine.running)
        assert served.front.gate.waiting == 0


def test_breaking_off_a_stream_frees_the_engine(endless):
    with endless.openai().chat.completions.create(**ASK, stream=True) as stream:
        for i, _ in enumerate(stream):
            if i == 3:
                break
    assert _until(lambda: not endless.engine.running)


def test_a_client_that_takes_nothing_is_given_up(start, script):
    settings = ServerSettings(client_timeout_s=0.5)
    with start(settings, script=script("x" * 3_000_000, ()), step_s=0) as served:
        served.engine.hello = served.engine.hello.__class__(
            **{name: getattr(served.engine.hello, name) for name in served.engine.hello.__struct_fields__}
            | {"context": 10_000_000}
        )
        body = json.dumps({**ASK, "stream": True}).encode()
        with _connect(served) as raw:
            raw.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            )
            raw.sendall(body)
            assert _until(lambda: served.engine.running)
            assert _until(lambda: not served.engine.running, 20)
        assert served.engine.aborted


def test_a_client_that_never_sends_its_body_is_told(start):
    with start(ServerSettings(client_timeout_s=0.2)) as served, _connect(served) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
        assert b" 408 " in raw.recv(1000)


@pytest.mark.parametrize("n", [1, 3])
def test_an_engine_that_dies_ends_a_stream_with_an_error_event(endless, n):
    stream = endless.openai().chat.completions.create(**ASK, stream=True, n=n)
    events = iter(stream)
    next(events)
    endless.do(lambda: endless.engine.die("the engine's process ended"))
    with pytest.raises(openai.APIError, match="the engine's process ended"):
        list(events)
    assert endless.front.gate.waiting == 0


def test_an_engine_that_dies_ends_an_answer_with_503(endless):
    killer = threading.Thread(target=_kill_once_running, args=(endless,))
    killer.start()
    with pytest.raises(openai.InternalServerError) as failed:
        endless.openai().chat.completions.create(**ASK)
    assert failed.value.status_code == 503
    assert failed.value.code == "engine_error"
    assert "the engine's process ended" in str(failed.value)
    with pytest.raises(openai.InternalServerError, match="the engine is down"):
        endless.openai().chat.completions.create(**ASK)


def _kill_once_running(served):
    assert _until(lambda: served.engine.running)
    served.do(lambda: served.engine.die("the engine's process ended"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_is_a_400_with_its_words(start, stream):
    with start(refuse=lambda request: "a prompt of 5 tokens never fits") as served:
        with pytest.raises(openai.BadRequestError, match="never fits"):
            served.openai().chat.completions.create(**ASK, stream=stream, n=2)
        assert served.front.gate.waiting == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_for_now_is_a_503(start, stream):
    with start(refuse=lambda request: "the engine is shutting down", later=True) as served:
        with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            served.openai().chat.completions.create(**ASK, stream=stream)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"


def test_a_fault_of_the_server_itself_is_an_error_object(start):
    def script(request):
        return (1000,) * 5  # no byte: the codec fails on it

    with start(script=script) as served:
        served.front.codec.piece = None
        response = httpx.post(f"{served.url}/v1/completions", json={"model": "well", "prompt": "a", "logprobs": 1})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        streamed = {"model": "well", "prompt": "a", "logprobs": 1, "stream": True}
        response = httpx.post(f"{served.url}/v1/completions", json=streamed)
        assert response.json()["error"]["type"] == "server_error"


def test_b136_every_request_over_the_limit_is_answered(start, script):
    settings = ServerSettings(max_waiting=4)
    with start(settings, script=script("x" * 5), step_s=0.01, slots=1) as served:

        async def ask(client):
            response = await client.post("/v1/chat/completions", json=ASK)
            return response.status_code, response.headers.get("retry-after"), response.json()

        async def everyone():
            async with httpx.AsyncClient(base_url=served.url, timeout=20) as client:
                return await asyncio.gather(*(ask(client) for _ in range(40)))

        answers = asyncio.run(everyone())
        assert {status for status, _, _ in answers} == {200, 503}
        assert len(answers) == 40
        for status, retry, body in answers:
            if status == 503:
                assert retry == "1"
                assert body["error"]["code"] == "queue_full"
        assert served.front.gate.waiting == 0
        assert httpx.post(f"{served.url}/v1/chat/completions", json=ASK).status_code == 200


def test_more_answers_than_may_ever_wait_are_a_400(start):
    with start(ServerSettings(max_waiting=4)) as served:
        response = httpx.post(f"{served.url}/v1/chat/completions", json={**ASK, "n": 5})
        assert response.status_code == 400


def test_a_stream_that_waits_gets_comments(start, script):
    with start(ServerSettings(ping_s=0.1), step_s=0.5, script=script("x")) as served:
        lines = []
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json={**ASK, "stream": True}) as response:
            lines = list(response.iter_lines())
    assert lines.count(": waiting") >= 3
    assert lines[-2] == "data: [DONE]"
