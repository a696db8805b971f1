"""Front ends and engine over a socket: who hears what, and what happens when either side goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import zmq

from stepwell.engine import wire
from stepwell.engine.client import EngineClient, EngineLost
from stepwell.engine.gate import Gate
from stepwell.engine.loop import News, Said
from stepwell.engine.messages import Abort, Control, Follow, Hello, KvEvents, Output, Pulse, Reply, Submit
from stepwell.errors import ConfigError, StepwellError
from stepwell.schedule.request import Request
from stepwell.types import Cached, Sampling, TokenLogprob

HELLO = Hello("m", 100, 257, (256,), 16, {"model": "x", "adapter": None}, False, "digest")


def request(rid: str) -> Request:
    return Request(rid=rid, namespace=b"n" * 32, tokens=b"\1\0\0\0" * 5)


class Engine:
    """A gate on a thread, and what came through it; answers are up to the test."""

    def __init__(self, address: str, *, pulses: bool = True, silent_s: float = 10.0, hello: Hello = HELLO) -> None:
        self.news: list[News] = []
        self.on: Callable[[News], list[Said]] = lambda news: []
        self._pulses = pulses
        self._gate = Gate(address, hello, self._post, silent_s=silent_s)
        self._stop = threading.Event()
        self.abrupt = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _post(self, *news: News) -> None:
        self.news += news
        for one in news:
            self._gate.deliver(self.on(one))

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._pulses:
                self._gate.deliver([Pulse(1, 0, 0)])
            self._gate.turn(0.02)
        self._gate.close("told to end")

    def say(self, *said: Said) -> None:
        self._gate.deliver(said)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/engine"


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    made = Engine(address)
    yield made
    made.close()


def echo(news: News) -> list[Said]:
    match news:
        case Submit(request=one):
            return [Output(one.rid, (1, 2)), Output(one.rid, (3,), finish="length", prompt_tokens=5)]
        case Abort(rid=rid, finish=finish):
            return [Output(rid, finish=finish)]
        case Control(id=id, verb="stats"):
            return [Reply(id, {"a": 1.5})]
        case Control(id=id):
            return [Reply(id, error="no")]
    return []


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


def runs(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own, within a limit."""

    def run(**fixtures: object) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = __import__("inspect").signature(test)  # type: ignore[attr-defined]
    return run


async def joined(address: str, silent_s: float = 10.0, plugins: str = "digest") -> EngineClient:
    return await EngineClient.connect(address, plugins=plugins, timeout_s=10, silent_s=silent_s)


# --- messages ----------------------------------------------------------------------------------------------------


@runs
async def test_whoever_follows_and_fails_costs_no_answers(address: str, engine: Engine) -> None:
    told: list[int] = []

    def follow(message: KvEvents) -> None:
        told.append(message.number)
        raise ValueError("no tier")

    engine.on = lambda news: [KvEvents(len(told), ())] if isinstance(news, Follow) else echo(news)
    client = await joined(address)
    client.follow(follow)
    await until(lambda: bool(told))
    assert [output.finish async for output in await client.submit(request("r"))] == [None, "length"]
    await client.close()


def test_b132_every_field_of_a_request_survives_the_wire() -> None:
    full = Request(
        rid="r",
        namespace=b"n" * 32,
        tokens=b"\1\0\0\0",
        digests=b"d" * 32,
        sampling=Sampling(7, 0.5, 3, 0.9, 0.1, 42, 1.1, 0.2, 0.3, 2, (5, 6), True),
        priority=-3,
        store=False,
        ttl=1.5,
        routing_key="k",
        tenant="t",
    )
    default = Request(rid="", namespace=b"", tokens=b"")
    for name in Request.__struct_fields__:
        assert getattr(full, name) != getattr(default, name), f"{name}: give it a value of its own here"
    (back,) = wire.from_front(wire.encode([Submit(full)]))
    assert back == Submit(full)


def test_every_field_of_an_output_survives_the_wire() -> None:
    logprobs = (TokenLogprob(-0.1, ((1, -0.1), (2, -3.0))),)
    said = [
        Output("r", (1,), logprobs, "stop", "why", 5, 6, Cached(1, 2, 3), True),
        Reply(1, {"x": 1.0, "y": [1, "z"]}),
        Pulse(1, 2, 3, {"v": 4.0}),
        wire.Welcome("i", HELLO),
    ]
    assert wire.from_back(wire.encode(said)) == said


# --- one front end -----------------------------------------------------------------------------------------------


@runs
async def test_requests_controls_and_pulses(engine: Engine, address: str) -> None:
    engine.on = echo
    client = await joined(address)
    assert client.hello == HELLO
    outputs = [output async for output in await client.submit(request("a"))]
    assert [output.tokens for output in outputs] == [(1, 2), (3,)]
    assert outputs[-1].finish == "length"
    assert await client.control("stats") == {"a": 1.5}
    with pytest.raises(StepwellError, match="no"):
        await client.control("dance")
    await until(client.alive)
    assert client.why_down == ""
    await client.close()


@runs
async def test_an_abandoned_request_is_aborted(engine: Engine, address: str) -> None:
    engine.on = lambda news: [Output(news.request.rid, (1,))] if isinstance(news, Submit) else []
    client = await joined(address)
    outputs = await client.submit(request("a"))
    await anext(outputs)
    outputs.close()
    await until(lambda: Abort("a") in engine.news)
    await client.close()


@runs
async def test_an_abort_has_a_last_output(engine: Engine, address: str) -> None:
    engine.on = lambda news: echo(news) if isinstance(news, Abort) else []
    client = await joined(address)
    outputs = await client.submit(request("a"))
    await client.abort("a", "stop")
    assert [output.finish async for output in outputs] == ["stop"]
    await client.close()


@runs
async def test_the_same_id_twice_is_refused(engine: Engine, address: str) -> None:
    client = await joined(address)
    await client.submit(request("a"))
    again = [output async for output in await client.submit(request("a"))]
    assert again[0].finish == "refused" and "in flight" in (again[0].error or "")
    await client.close()


@runs
async def test_b144_other_plugins_are_refused(engine: Engine, address: str) -> None:
    with pytest.raises(ConfigError, match="different plugins"):
        await joined(address, plugins="others")


@runs
async def test_no_engine_is_said_after_the_timeout(address: str) -> None:
    with pytest.raises(EngineLost, match="no engine answered"):
        await EngineClient.connect(address, plugins="digest", timeout_s=0.2)


# --- several -----------------------------------------------------------------------------------------------------


@runs
async def test_b136_each_front_end_hears_of_its_own_requests_refusals_included(engine: Engine, address: str) -> None:
    first, second = await joined(address), await joined(address)
    mine, yours = await first.submit(request("a")), await second.submit(request("b"))
    await until(lambda: len(engine.news) == 2)
    engine.say(Output("b", finish="refused", error="full"), Output("a", (1,), finish="stop"))
    assert [output.finish async for output in mine] == ["stop"]
    assert [output.finish async for output in yours] == ["refused"]
    await first.close()
    await second.close()


@runs
async def test_a_front_end_cannot_take_or_end_anothers_request(engine: Engine, address: str) -> None:
    engine.on = lambda news: []
    first, second = await joined(address), await joined(address)
    mine = await first.submit(request("a"))
    await until(lambda: len(engine.news) == 1)
    stolen = [output async for output in await second.submit(request("a"))]
    assert stolen[0].finish == "refused"
    await second.abort("a")
    engine.say(Output("a", (9,), finish="stop"))
    assert [output.tokens async for output in mine] == [(9,)]
    assert not [news for news in engine.news if isinstance(news, Abort)]
    await first.close()
    await second.close()


@runs
async def test_two_controls_of_one_number_find_their_way(engine: Engine, address: str) -> None:
    engine.on = lambda news: [Reply(news.id, {"id": float(news.id)})] if isinstance(news, Control) else []
    first, second = await joined(address), await joined(address)
    answers = await asyncio.gather(first.control("stats"), second.control("stats"))
    assert answers[0] != answers[1]
    await first.close()
    await second.close()


# --- a front end goes ----------------------------------------------------------------------------------------------


@runs
async def test_requests_of_a_front_end_that_leaves_are_aborted(engine: Engine, address: str) -> None:
    client = await joined(address)
    await client.submit(request("a"))
    await until(lambda: len(engine.news) == 1)
    await client.close()
    await until(lambda: Abort("a") in engine.news)


@runs
async def test_requests_of_a_front_end_that_dies_or_falls_silent_are_aborted(address: str) -> None:
    engine = Engine(address, pulses=False, silent_s=0.5)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    socket.send(wire.encode([wire.Join(), Submit(request("a"))]))
    await until(lambda: Abort("a") in engine.news)
    socket.send(wire.encode([wire.Beat()]))
    socket.poll(5000)
    said = wire.from_back(socket.recv()) + wire.from_back(socket.recv())
    assert isinstance(said[-1], wire.Stranger)
    socket.close(0)
    context.term()
    engine.close()


@runs
async def test_rubbish_on_the_socket_hurts_nobody(engine: Engine, address: str) -> None:
    engine.on = echo
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    socket.send(b"\xc1 rubbish")
    socket.send_multipart([b"too", b"many", b"parts"])
    client = await joined(address)
    assert [output.finish async for output in await client.submit(request("a"))][-1] == "length"
    socket.close(0)
    context.term()
    await client.close()


# --- the engine goes ---------------------------------------------------------------------------------------------


@runs
async def test_an_engine_that_ends_ends_its_requests_with_its_reason(address: str) -> None:
    engine = Engine(address)
    client = await joined(address)
    outputs = await client.submit(request("a"))
    await until(lambda: len(engine.news) == 1)
    asked = asyncio.create_task(client.control("stats"))
    await until(lambda: len(engine.news) == 2)
    engine.close()
    (last,) = [output async for output in outputs]
    assert last.finish == "error" and last.error == "told to end"
    with pytest.raises(EngineLost, match="told to end"):
        await asked
    assert not client.alive() and client.why_down == "told to end"
    refused = [output async for output in await client.submit(request("b"))]
    assert refused[0].finish == "error"
    await client.close()


@runs
async def test_b137_a_silent_engine_is_not_alive_and_its_requests_end(address: str) -> None:
    """Traffic proves nothing: only the loop's own sign of life does."""
    engine = Engine(address, pulses=False)
    client = await joined(address, silent_s=1.0)
    outputs = await client.submit(request("a"))
    for _ in range(8):
        engine.say(Output("a", (1,)))
        await asyncio.sleep(0.1)
    assert not client.alive(0.5)
    collected = [output async for output in outputs]
    assert collected[-1].finish == "error" and "silent" in (collected[-1].error or "")
    await client.close()
    engine.close()


@runs
async def test_a_restarted_engine_is_joined_again(address: str) -> None:
    engine = Engine(address)
    client = await joined(address)
    outputs = await client.submit(request("a"))
    await until(lambda: len(engine.news) == 1)
    engine.close()
    assert [output.finish async for output in outputs] == ["error"]
    engine = Engine(address)
    engine.on = echo
    await until(client.alive)
    assert [output.finish async for output in await client.submit(request("c"))][-1] == "length"
    assert [news for news in engine.news if isinstance(news, Submit)] == [Submit(request("c"))], (
        "nothing old came through"
    )
    assert client.restarts == 1
    await client.close()
    engine.close()


@runs
async def test_an_engine_that_comes_back_with_other_plugins_is_not_used(address: str) -> None:
    engine = Engine(address)
    client = await joined(address)
    engine.close()
    engine = Engine(address, hello=Hello("m", 100, 257, (256,), 16, {}, False, "others"))
    await until(lambda: "other plugins" in client.why_down)
    assert not client.alive()
    await client.close()
    engine.close()
