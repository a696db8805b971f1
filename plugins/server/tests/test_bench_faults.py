"""Servers that die, lie, hang or refuse: requests that failed, with their reasons, and an end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from click.testing import CliRunner

from stepwell.cli import root

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices":[{"text":"x"}]}\n\n'
FINISH = b'data: {"choices":[{"text":"x","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"

Handler = Callable[[asyncio.StreamWriter, dict], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def says(*parts: bytes) -> Handler:
    async def handler(writer: asyncio.StreamWriter, body: dict) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return handler


def hangs(*parts: bytes) -> Handler:
    async def handler(writer: asyncio.StreamWriter, body: dict) -> None:
        await says(*parts)(writer, body)
        await asyncio.sleep(30)

    return handler


async def good(writer: asyncio.StreamWriter, body: dict) -> None:
    usage = USAGE % (len(body["prompt"].split()) * 2)
    writer.write(CHUNKED + chunk(PIECE))
    await writer.drain()
    writer.write(chunk(FINISH) + chunk(usage) + chunk(DONE) + b"0\r\n\r\n")


def refuses(status: bytes, message: str, extra: bytes = b"") -> Handler:
    body = json.dumps({"error": {"message": message}}).encode()
    return says(b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, extra, len(body), body))


async def moody(writer: asyncio.StreamWriter, body: dict) -> None:
    """Every other request by its prompt dies."""
    await (good if len(body["prompt"]) % 2 else says(CHUNKED, chunk(PIECE)))(writer, body)


SERVERS: dict[str, tuple[Handler, str]] = {
    "dies": (says(CHUNKED, chunk(PIECE)), "the connection ended before the answer did"),
    "half": (says(CHUNKED, b"ffff\r\nda"), "the connection ended before the answer did"),
    "closes": (says(), "no answer, connection ended"),
    "garbage": (says(b"\x00\xff not HTTP at all\r\n\r\n"), "malformed HTTP"),
    "events": (says(CHUNKED, chunk(b"data: {oops\n\n"), b"0\r\n\r\n"), "not the JSON"),
    "page": (says(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi"), "not a stream"),
    "short": (says(CHUNKED, chunk(PIECE), b"0\r\n\r\n"), "the stream ended without its end"),
    "tells": (says(CHUNKED, chunk(b'data: {"error":{"message":"engine died"}}\n\n'), b"0\r\n\r\n"), "engine died"),
    "busy": (refuses(b"429 Too Many", "slow down", b"retry-after: 0.01\r\n"), "HTTP 429: slow down (retry after 0.01"),
    "down": (refuses(b"503 Unavailable", "no engine"), "HTTP 503: no engine"),
    "silent": (hangs(), "not begun within 0.2 s"),
    "stalls": (hangs(CHUNKED, chunk(PIECE)), "not finished within 0.2 s"),
}
OTHERS: dict[str, Handler] = {
    "good": good,
    "moody": moody,
    "wrong": refuses(b"400 Bad Request", "unknown field ignore_eos"),
    "raw": says(HEAD + b"\r\n", PIECE + FINISH),  # the connection's end is the answer's
    "lingers": hangs(CHUNKED, chunk(PIECE + FINISH + DONE)),
}
HANDLERS = {**{name: handler for name, (handler, _) in SERVERS.items()}, **OTHERS}


class Fake:
    """Behaves as the model's name says."""

    def __init__(self) -> None:
        self.connections = 0
        self.stop: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self.url = ""

    async def serve(self, ready: threading.Event) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await self.stop.wait()
        server.close()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                body = json.loads(await reader.readexactly(length))
                await HANDLERS[body["model"]](writer, body)
                if body["model"] != "good":
                    return
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    one, ready = Fake(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(one.serve(ready)), daemon=True)
    thread.start()
    assert ready.wait(5)
    yield one
    one.loop.call_soon_threadsafe(one.stop.set)
    thread.join(5)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv("STEPWELL_PLUGINS", "stepwell-server")

    def run(url: str, model: str, *options: str):
        common = ("--concurrency", "2", "--requests", "4", "--warmup", "0", "--timeout", "0.2", "--json")
        done = CliRunner().invoke(root, ["bench", "serve", "--url", url, "--model", model, *common, *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done

    return run


@pytest.mark.parametrize("model", SERVERS)
def test_a_bad_server_is_failed_requests_and_a_reason(bench, fake, model):
    done = bench(fake.url, model)
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    (level,) = found["levels"]
    assert (level["completed"], level["failed"]) == (0, 4)
    (reason,) = level["failures"]
    assert SERVERS[model][1] in reason
    assert level["ttft_s"] is None
    assert level["output_tokens_per_s"] == 0
    assert any("trial request failed" in note for note in found["notes"])


def test_connections_are_used_again(bench, fake):
    before = fake.connections
    done = bench(fake.url, "good", "--requests", "20", "--input-tokens", "30", "--timeout", "5")
    found = json.loads(done.stdout)
    (level,) = found["levels"]
    assert done.exit_code == 0, level["failures"]
    assert fake.connections - before <= 3
    assert level["output_tokens"] == 40
    assert level["prompt_tokens"] == 20 * 30  # a word is two tokens here, which the trial found out
    assert level["cached_tokens"] is None
    assert found["notes"] == ["the server does not tell cached tokens"]


def test_some_failures_among_answers(bench, fake):
    done = bench(fake.url, "moody", "--requests", "30", "--timeout", "5", "--concurrency", "4")
    (level,) = json.loads(done.stdout)["levels"]
    assert done.exit_code == 1
    assert level["completed"] + level["failed"] == 30
    assert level["completed"] > 0
    assert level["failed"] > 0
    assert level["ttft_s"]["p50"] > 0


@pytest.mark.parametrize("model", ["raw", "lingers"])
def test_an_end_that_is_not_by_the_book_is_an_end(bench, fake, model):
    done = bench(fake.url, model, "--requests", "2", "--timeout", "5")
    assert json.loads(done.stdout)["levels"][0]["completed"] == 2


def test_a_level_without_hope_ends_and_the_others_are_left_out(bench, fake):
    done = bench(fake.url, "closes", "--requests", "1000", "--concurrency", "8,16")
    found = json.loads(done.stdout)
    assert len(found["levels"]) == 1
    assert 20 <= found["levels"][0]["failed"] < 40
    assert any("left out" in note for note in found["notes"])


def test_a_refused_trial_is_one_sentence(bench, fake):
    done = bench(fake.url, "wrong")
    assert done.exit_code == 2
    assert "HTTP 400: unknown field ignore_eos; --no-ignore-eos leaves that field out" in done.stderr


def test_no_server_is_one_sentence(bench):
    done = bench("http://127.0.0.1:9/v1", "x")
    assert done.exit_code == 2
    assert "is a server there?" in done.stderr
