"""Two replicas of one engine: what they find cached, what clients see, and what one of them may take with it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import stepwell

if TYPE_CHECKING:
    from conftest import Deployed

pytestmark = pytest.mark.xdist_group("ray")

PAGE, PAGES = 16, 160
CLIENT = {"authorization": "Bearer well"}
Prompt = list[int]


def sessions(count: int, prefixes: int, turns: int, seed: int) -> list[Prompt]:
    """Prompts of sessions that share system prompts, in the order in which they come; each turn continues its last."""
    dice = random.Random(seed)

    def text(pages: int) -> Prompt:
        return [dice.randrange(256) for _ in range(pages * PAGE)]

    systems = [text(8) for _ in range(prefixes)]
    state = [list(systems[at % prefixes]) for at in range(count)]
    asked = []
    for _ in range(turns):
        for at in dice.sample(range(count), count):
            state[at] += text(3) + text(1)[: dice.randrange(1, PAGE)]
            asked.append(list(state[at]))
    return asked


def cached(answer: httpx.Response) -> dict[str, int]:
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]


@contextmanager
def begun(well: Deployed, seed: int) -> Iterator[Iterator[str]]:
    """An answer that has begun to come, and takes a second."""
    body = {"model": "sim", "prompt": [seed] * 40, "max_tokens": 400, "stream": True}
    with well.client.stream("POST", "/v1/completions", json=body, headers=CLIENT) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {"), answer.status_code
        yield lines


def last(lines: Iterator[str]) -> str:
    """How a stream ends."""
    return [line for line in lines if line][-1].removeprefix("data: ")


def test_two_replicas_find_what_one_of_twice_their_size_finds(well: Deployed) -> None:
    asked = sessions(count=12, prefixes=3, turns=4, seed=1)
    two = sum(cached(well.complete(prompt))["cached_tokens"] for prompt in asked)
    settings = {"cache.page_size": PAGE, "cache.device_pages": 2 * PAGES, "cache.host_pages": 2 * PAGES}
    with stepwell.Engine(runner="sim", **{"runner.eos_every": 0}, **settings) as one:
        alone = sum(one.generate(prompt, max_tokens=4).cached.total for prompt in asked)
    assert two >= 0.95 * alone > 0, (two, alone)
    served = [replica["generated_tokens"] for replica in well.stats().values()]
    assert min(served) > 0.2 * sum(served), "one of the two did everything"


def test_answers_stream_and_errors_are_those_of_the_server(well: Deployed) -> None:
    prompt = [5] * 40
    whole = well.complete(prompt, 8).json()["choices"][0]["text"]
    with well.client.stream(
        "POST",
        "/v1/completions",
        json={"model": "sim", "prompt": prompt, "max_tokens": 8, "stream": True},
        headers=CLIENT,
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    texts = [httpx.Response(200, text=event).json()["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == whole
    for status, body in ((404, {"model": "other", "prompt": "x"}), (400, {"model": "sim", "prompt": "x", "n": 0})):
        refused = well.client.post("/v1/completions", json=body, headers=CLIENT)
        assert (refused.status_code, set(refused.json()["error"])) == (status, {"message", "type", "param", "code"})
    assert well.client.post("/v1/completions", json={"model": "sim", "prompt": "x"}).status_code == 401
    assert "stepwell_completion_tokens_total" in well.client.get("/metrics").text
    assert well.client.get("/health/live").json()["status"] == "ok"


def test_who_has_no_token_of_this_ray_reaches_nothing_from_elsewhere(well: Deployed) -> None:
    """Ray Serve has replicas listen on every address for each other: all else keeps to loopback, and that asks."""
    import grpc

    found = list(listening(well.family()))
    loopback = (ip_address("127.0.0.1"), ip_address("::ffff:127.0.0.1"), ip_address("::1"))
    open_to_all = [port for address, port in found if address not in loopback]
    assert len(found) > len(open_to_all) > 0
    assert len(open_to_all) <= 3, "more than one a replica"
    for port in open_to_all:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def listening(pids: list[int]) -> Iterator[tuple[IPv4Address | IPv6Address, int]]:
    """Addresses and ports at which these processes wait for connections."""
    sockets = set()
    for pid in pids:
        with suppress(OSError):
            sockets |= {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = row.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                address, _, port = local.partition(":")
                words = bytes.fromhex(address)
                turned = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                yield ip_address(turned), int(port, 16)


def test_sessions_of_a_replica_that_dies_go_on_with_what_storage_has(well: Deployed) -> None:
    """In this file's last place: it costs a replica, and the next one takes its time to come."""
    asked = sessions(count=6, prefixes=6, turns=2, seed=2)
    with ThreadPoolExecutor(6) as clients:  # at once, so that both replicas get some
        for answer in clients.map(lambda prompt: well.complete(prompt, 50), asked[:6]):
            cached(answer)
    victim = next(iter(well.replicas()))
    with begun(well, 1) as first, begun(well, 2) as second:
        os.kill(victim, signal.SIGKILL)
        answers = [cached(well.complete(prompt)) for prompt in asked[6:]]
        ends = sorted((last(first), last(second)), key=len)
    assert ends[0] == "[DONE]"
    assert "error" in ends[1], "the replica that died had begun to answer, and somebody went on"
    assert sum(answer["stepwell"]["storage"] for answer in answers) >= 8 * PAGE, answers
    assert all(answer["cached_tokens"] >= 8 * PAGE for answer in answers), answers
