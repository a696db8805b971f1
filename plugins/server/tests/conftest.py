"""A front end over a scripted engine, behind a real uvicorn on a free port."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for server_process, which the tests share

import asyncio
import codecs
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import openai
import pytest
import uvicorn

from stepwell.abc.codec import Codec, TextStream
from stepwell.engine.client import Outputs
from stepwell.engine.messages import Hello, Output, Pulse
from stepwell.engine.stats import Told
from stepwell.schedule.request import Request
from stepwell.types import Cached, TokenLogprob
from stepwell_server.app import make_app
from stepwell_server.settings import ServerSettings
from stepwell_server.state import Front

EOS = 256
VOCAB = 260
CONTEXT = 4096


HELLO = Hello("well-1", CONTEXT, VOCAB, (EOS,), 16, {"model": "abc", "page_size": "16"}, True, "x")


class ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(bytes(token for token in tokens if token < 256))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteCodec(Codec):
    """One token a byte."""

    vocab = VOCAB
    eos = (EOS,)

    def encode(self, text: str) -> bytes:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype("<i4").tobytes()

    def chat(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        if messages[-1]["role"] != "user":
            raise ValueError("the last message must be the user's")
        return self.encode("".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>")

    def stream(self) -> TextStream:
        return ByteStream()

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


Script = Callable[[Request], Sequence[int]]


def say(text: str, then: tuple[int, ...] = (EOS,)) -> Script:
    return lambda request: (*text.encode(), *then)


@dataclass
class FakeEngine:
    """Answers by script, `slots` at a time, one token every `step_s`."""

    script: Script = field(default_factory=lambda: say("Hello from the well."))
    step_s: float = 0.0
    slots: int = 64
    refuse: Callable[[Request], str | None] = lambda request: None
    later: bool = False
    cached: Cached = field(default_factory=Cached)
    hello: Hello = field(default_factory=lambda: HELLO)
    why_down: str = ""
    restarts: int = 0
    seen: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: dict[str, tuple[Outputs, asyncio.Task[None]]] = field(default_factory=dict)
    beating: bool = True
    ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    values: dict[str, float] = field(default_factory=dict)
    told: Told = field(default_factory=Told)
    controls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._room: asyncio.Semaphore | None = None

    @property
    def last_pulse(self) -> Pulse | None:
        return Pulse(next(self.ticks), len(self.running), 0, self.values, self.told)

    def alive(self, within_s: float = 1.5) -> bool:
        return self.beating and not self.why_down

    async def submit(self, request: Request) -> Outputs:
        self.seen.append(request)
        outputs = Outputs(request.rid, self._drop)
        refused = self.refuse(request)
        if self.why_down:
            outputs.put(Output(request.rid, finish="error", error=self.why_down))
        elif refused:
            outputs.put(Output(request.rid, finish="refused", error=refused, later=self.later))
        else:
            self.running[request.rid] = outputs, asyncio.create_task(self._answer(request, outputs))
        return outputs

    async def _answer(self, request: Request, outputs: Outputs) -> None:
        self._room = self._room or asyncio.Semaphore(self.slots)
        async with self._room:
            prompt, wanted = len(request.tokens) // 4, request.sampling.logprobs
            for count, token in enumerate(self.script(request), 1):
                await asyncio.sleep(self.step_s)
                stop = token == EOS and not request.sampling.ignore_eos
                finish = "stop" if stop else "length" if count == request.sampling.max_tokens else None
                top = tuple((token + i, -0.5 - i) for i in range(wanted or 0))
                scored = None if wanted is None else (TokenLogprob(-0.5, top),)
                outputs.put(Output(request.rid, (token,), scored, finish, None, prompt, count, self.cached))
                if finish:
                    break
            self.running.pop(request.rid, None)

    def _drop(self, rid: str) -> None:
        self.aborted.append(rid)
        found = self.running.pop(rid, None)
        if found:
            found[1].cancel()

    async def abort(self, rid: str, finish: str = "abort") -> None:
        found = self.running.pop(rid, None)
        if found:
            found[1].cancel()
            found[0].put(Output(rid, finish=finish, prompt_tokens=0, cached=self.cached))

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        self.controls.append(verb)
        return {"verb": verb}

    async def close(self) -> None:
        self.die("closed")

    def die(self, why: str) -> None:
        self.why_down = why
        for outputs, task in list(self.running.values()):
            task.cancel()
            outputs.put(Output(outputs.rid, finish="error", error=why))
        self.running.clear()


@dataclass
class Served:
    """A running front end."""

    url: str
    front: Front
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop

    def openai(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def do(self, act: Callable[[], object]) -> None:
        """Run something on the server's loop."""

        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)


@contextmanager
def serving(settings: ServerSettings | None = None, **engine: object) -> Iterator[Served]:
    fake = FakeEngine(**engine)
    front = Front(settings or ServerSettings(), ByteCodec(), fake, aliases=("well",))
    config = uvicorn.Config(make_app(front), host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}", front, fake, loop)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        front.executor.shutdown()
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def start() -> Callable[..., object]:
    """`with start(settings, **engine) as served:`"""
    return serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


@pytest.fixture(scope="session")
def script() -> Callable[..., Script]:
    return say
