"""`stepwell serve` end to end: a launcher, a front end and an engine with the sim runner, and the official client."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress

import httpx
import openai
import pytest
from server_process import ADMIN, BASE, command, environment, real, refused, until

ASK = {"model": "sim", "messages": [{"role": "user", "content": "Tell me of wells."}], "temperature": 0}
LONG = {**ASK, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with real(tmp_path_factory.mktemp("serve"), "runner.pace=0.002", "runner.chunk=256") as one:
        yield one


# --- answers -----------------------------------------------------------------------------------------------------


def test_the_same_question_gives_the_same_answer_whole_and_streamed(server):
    client = server.openai()
    whole = client.chat.completions.create(**ASK, max_tokens=60)
    chunks = list(client.chat.completions.create(**ASK, max_tokens=60, stream=True))
    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_cached_tokens_come_back_by_tier(server):
    client = server.openai()
    ask = {**ASK, "messages": [{"role": "user", "content": "A stepwell keeps water. " * 12}], "max_tokens": 8}
    first = client.chat.completions.create(**ask)
    again = client.chat.completions.create(**ask)
    salted = client.chat.completions.create(**ask, extra_body={"cache_salt": "somebody else"})
    details = again.usage.prompt_tokens_details
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert details.cached_tokens == details.stepwell["device"] == (again.usage.prompt_tokens - 1) // 16 * 16
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    texts = {answer.choices[0].message.content for answer in (first, again, salted)}
    assert len(texts) == 1


def test_pages_that_may_not_be_stored_are_not_found_again(server):
    client = server.openai()
    ask = {**ASK, "messages": [{"role": "user", "content": "Keep nothing of this. " * 12}], "max_tokens": 8}
    for _ in range(2):
        answer = client.chat.completions.create(**ask, extra_body={"cache_store": False})
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_engines_work_too(server, stream):
    client = server.openai()
    text = client.chat.completions.create(**{**LONG, "max_tokens": 300}).choices[0].message.content
    stop = text[40:43]
    ask = {**LONG, "stop": stop, "stream": stream}
    if stream:
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask))
    else:
        answer = client.chat.completions.create(**ask).choices[0].message.content
    assert answer == text[: text.index(stop)]
    assert until(server.at_rest)


def test_choices_and_prompts_and_logprobs(server):
    client = server.openai()
    answer = client.completions.create(
        model="sim", prompt=["one", "two"], n=2, max_tokens=12, logprobs=2, seed=3, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == 12
        assert "".join(choice.logprobs.tokens) == choice.text
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == 48


def test_many_at_once(server):
    async def everyone():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            asks = [client.chat.completions.create(**ASK, max_tokens=20) for _ in range(48)]
            return await asyncio.gather(*asks)

    texts = {answer.choices[0].message.content for answer in asyncio.run(everyone())}
    assert len(texts) == 1
    assert until(server.at_rest)


def test_what_never_fits_is_refused_with_the_limit(server):
    with pytest.raises(openai.BadRequestError, match="never fit into device memory"):
        server.openai().chat.completions.create(**{**ASK, "max_tokens": 7000})


def test_a_chat_without_a_length_gets_what_the_device_holds(server):
    answer = server.openai().chat.completions.create(**ASK)
    assert answer.choices[0].finish_reason == "stop"


# --- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_b133_a_client_that_leaves_frees_the_pool(server, stream, n):
    body = json.dumps({**ASK, "max_tokens": 1000, "ignore_eos": True, "stream": stream, "n": n}).encode()
    with socket.create_connection(httpx.URL(server.url).netloc.decode().rsplit(":")) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert until(lambda: server.stats()["running"] >= 1)
        if stream:
            assert raw.recv(100)
    assert until(server.at_rest, 3)
    assert server.clean()


@pytest.mark.parametrize("pause", [0.001, 0.05, 0.5])
def test_b133_a_turn_broken_off_ends_there_and_the_next_one_sees_what_came(server, pause):
    """There are no sessions: the next turn holds what its client saw of the one before, and nothing else."""
    client, talk = server.openai(), [{"role": "user", "content": f"Tell me of wells, {pause}."}]
    ask = {"model": "sim", "temperature": 0, "max_tokens": 1000, "extra_body": {"ignore_eos": True}}
    before = server.stats()
    with client.chat.completions.create(**ask, messages=talk, stream=True) as stream:
        texts = (chunk.choices[0].delta.content or "" for chunk in stream)
        seen = "".join(text for text, _ in zip(filter(None, texts), range(5), strict=False))
    time.sleep(pause)
    talk += [{"role": "assistant", "content": seen}, {"role": "user", "content": "Go on."}]
    again = client.chat.completions.create(**{**ask, "max_tokens": 20}, messages=talk)
    assert again.choices[0].finish_reason == "length"
    assert until(server.at_rest)
    after = server.stats()
    assert after["aborted"] - before["aborted"] == 1
    assert after["generated_tokens"] - before["generated_tokens"] < 20 + 500
    assert httpx.post(f"{server.url}/admin/flush", headers=ADMIN).json() == {"flushed": True}
    fresh = client.chat.completions.create(**{**ask, "max_tokens": 20}, messages=talk)
    assert fresh.usage.prompt_tokens_details.cached_tokens == 0
    assert fresh.choices[0].message.content == again.choices[0].message.content
    assert server.clean()


def test_a_flush_empties_the_tree(server):
    server.openai().chat.completions.create(**ASK, max_tokens=40)
    assert until(server.at_rest)
    assert httpx.post(f"{server.url}/admin/flush", headers=ADMIN).json() == {"flushed": True}
    stats = server.stats()
    assert stats["device_pages_free.full"] == stats["device_pages_total.full"]


def test_metrics_of_the_real_engine(server):
    server.openai().chat.completions.create(**ASK, max_tokens=4)
    total = 'stepwell_pages{group="full",state="total",tier="device"} 256.0'
    assert until(lambda: total in server.get("/metrics").text)  # the engine's figures come with its signs of life
    text = server.get("/metrics").text
    assert "stepwell_engine_up 1.0" in text
    for process in ("launcher", "front", "engine"):
        assert f'stepwell_resident_bytes{{process="{process}"}}' in text


# --- faults ------------------------------------------------------------------------------------------------------


def _probe(server, answers, over):
    while not over.is_set():
        try:
            response = server.get("/health")
            answers.append((time.monotonic(), response.status_code, response.json()))
        except httpx.TransportError as error:
            answers.append((time.monotonic(), 0, {"reason": repr(error)}))
        time.sleep(0.1)


def test_b137_a_killed_engine_is_unhealthy_within_two_seconds_and_comes_back(server):
    stream = iter(server.openai().chat.completions.create(**LONG, stream=True))
    next(stream)
    answers, over = [], threading.Event()
    prober = threading.Thread(target=_probe, args=(server, answers, over))
    prober.start()
    killed = time.monotonic()
    os.kill(server.pid("engine"), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="the engine's process ended"):
        list(stream)
    assert time.monotonic() - killed < 2
    assert until(lambda: any(status == 503 for _, status, _ in answers), 2)
    at, _, body = next(one for one in answers if one[1] == 503)
    assert at - killed < 2
    assert "the engine's process ended" in body["reason"]
    assert until(server.healthy, 30)
    over.set()
    prober.join()
    assert server.openai().chat.completions.create(**ASK, max_tokens=5).choices[0].message.content
    assert "engine was killed by SIGKILL; restarting it" in server.words


def test_b137_a_stalled_engine_is_unhealthy_within_two_seconds_under_traffic(server):
    engine = server.pid("engine")
    os.kill(engine, signal.SIGSTOP)
    try:
        stalled = time.monotonic()
        asking = threading.Thread(target=lambda: _ask_for(server, 2.0))
        asking.start()
        assert until(lambda: not server.healthy(), 2.1)
        assert time.monotonic() - stalled < 2.1
        assert "not heard" in server.get("/health").json()["reason"]
        asking.join()
    finally:
        os.kill(engine, signal.SIGCONT)
    assert until(server.healthy)
    assert until(server.at_rest)


def _ask_for(server, seconds):
    with pytest.raises(openai.APITimeoutError):
        server.openai(timeout=seconds).chat.completions.create(**ASK)


def test_a_killed_front_end_frees_the_engine_and_comes_back_on_the_same_port(server):
    stream = iter(server.openai().chat.completions.create(**LONG, stream=True))
    next(stream)
    before = server.pid("engine")
    os.kill(server.pid("front"), signal.SIGKILL)
    with pytest.raises((httpx.TransportError, openai.APIConnectionError)):
        list(stream)
    assert until(server.healthy, 30)
    assert server.pid("engine") == before
    assert until(server.at_rest, 15)
    assert server.clean()
    assert server.openai().chat.completions.create(**ASK, max_tokens=5).choices[0].message.content


def test_kills_at_random_moments_cost_errors_and_nothing_else(server):
    dice, over, told = random.Random(7), threading.Event(), []
    right = server.openai().chat.completions.create(**ASK, max_tokens=40).choices[0].message.content

    def keep_asking():
        while not over.is_set():
            try:
                answer = server.openai(timeout=20).chat.completions.create(**ASK, max_tokens=40)
                told.append(answer.choices[0].message.content == right)
            except openai.APIError as error:
                told.append(type(error).__name__)
                time.sleep(0.05)

    askers = [threading.Thread(target=keep_asking) for _ in range(6)]
    for asker in askers:
        asker.start()
    for name in ("engine", "front", "engine", "front"):
        time.sleep(dice.uniform(0.2, 1.0))
        os.kill(server.pid(name), signal.SIGKILL)
        assert until(server.healthy, 30)
    over.set()
    for asker in askers:
        asker.join()
    assert told.count(True) > 6
    assert False not in told
    assert set(told) <= {True, "InternalServerError", "APIConnectionError"}
    assert until(server.at_rest, 15)
    assert server.clean()


def test_b138_a_long_chunked_prefill_stays_healthy(tmp_path):
    sets = ("runner.pace=0.3", "runner.chunk=64", "cache.device_pages=600", "engine.drain_s=0", "server.pulse_s=1")
    with real(tmp_path, *sets) as server:
        words = "word " * 250
        asks = [threading.Thread(target=_ask_anyway, args=(server, f"{i} {words}")) for i in range(3)]
        begin = time.monotonic()
        for ask in asks:
            ask.start()
        seen = []
        while any(ask.is_alive() for ask in asks) and time.monotonic() - begin < 5:
            seen.append(server.get("/health").status_code)
            time.sleep(0.1)
        assert time.monotonic() - begin > 4
        assert set(seen) == {200}


def _ask_anyway(server, prompt):
    with suppress(openai.APIError):  # the test ends before the answer does
        server.openai().completions.create(model="sim", prompt=prompt, max_tokens=1)


def test_b136_every_request_over_the_engines_limit_is_answered(tmp_path):
    with real(tmp_path, "runner.pace=0.005", "engine.max_waiting=4", "engine.max_running=1") as server:

        async def everyone():
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                asks = [client.post("/v1/chat/completions", json={**ASK, "max_tokens": 20}) for _ in range(40)]
                return [
                    (answer.status_code, answer.headers.get("retry-after")) for answer in await asyncio.gather(*asks)
                ]

        answers = asyncio.run(everyone())
        assert len(answers) == 40
        assert set(answers) == {(200, None), (503, "1")}
        assert until(server.at_rest)
        assert server.clean()


def test_a_stop_lets_answers_finish(tmp_path):
    with real(tmp_path, "runner.pace=0.005") as server:
        stream = iter(server.openai().chat.completions.create(**{**LONG, "max_tokens": 200}, stream=True))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: server.get("/health/ready").status_code == 503, 3)
        with pytest.raises(openai.InternalServerError) as late:
            server.openai().chat.completions.create(**ASK)
        assert late.value.status_code == 503
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert server.process.wait(20) == 0


def test_an_engine_that_may_not_be_restarted_ends_the_server(tmp_path):
    with real(tmp_path, "server.on_engine_death=exit") as server:
        os.kill(server.pid("engine"), signal.SIGKILL)
        assert server.process.wait(20) == 1
        assert "Error: engine was killed by SIGKILL" in server.words
        assert "Traceback" not in server.words


def test_a_killed_launcher_leaves_nothing_behind(tmp_path):
    with real(tmp_path) as server:
        pids = [server.pid("engine"), server.pid("front")]
        server.process.kill()
        assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))  # noqa: PTH110


# --- starts that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("server.prot=1",), "server.prot (--set server.prot): no such setting; did you mean port?"),
        (("server.port=70000",), "port"),
        (("server.host=nowhere.invalid",), "'nowhere.invalid' is no address of this machine"),
        (("server.on_engine_death=panic",), "'panic' is not one of restart, exit"),
        (("runner.use=nothing",), "nothing installed offers it"),
        (("runner.model=5", "cache.device_pages=1"), "the device holds"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_two(tmp_path, sets, words):
    status, told = refused(tmp_path, *BASE, *sets)
    assert status == 2, told
    assert words in told
    assert "Traceback" not in told
    assert sum(line.startswith("Error: ") for line in told.splitlines()) == 1


def test_a_port_in_use_is_one_sentence_and_status_two(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, told = refused(tmp_path, *BASE, f"server.port={port}")
    assert status == 2
    assert f"{port} is in use on 127.0.0.1" in told
    assert "--port" in told


def test_keys_of_the_command_line_reach_the_server_and_no_output(tmp_path):
    done = subprocess.run(
        [*command(*BASE, "runner.use=nothing"), "--api-key", "sesame"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "sesame" not in done.stdout + done.stderr
