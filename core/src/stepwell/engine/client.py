"""The front end's side of an engine that runs in another process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Protocol, Self

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from stepwell.engine import wire
from stepwell.engine.messages import Abort, Control, Follow, Hello, KvEvents, Output, Pulse, Reply, Submit, heard
from stepwell.errors import ConfigError, StepwellError
from stepwell.schedule.request import Request

MANY = 100_000
"""Messages that may queue up on a connection before the other side counts as dead."""


class EngineLost(StepwellError):
    """The engine ended or went silent before it answered."""


class Conflict(StepwellError):
    """It cannot be done as things are now; the sentence says what stands in the way."""


def raised(reply: Reply) -> StepwellError:
    """An engine's error as it is raised here."""
    kind = {"config": ConfigError, "conflict": Conflict}.get(reply.fault, StepwellError)
    return kind(reply.error or "")


class Outputs(AsyncIterator[Output]):
    """The outputs of one request; the last has a `finish`. Close it when you stop reading early: that aborts."""

    def __init__(self, rid: str, abort: Callable[[str], None]) -> None:
        self.rid = rid
        self._abort = abort
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._put = False
        self._done = False
        self._begun = False
        self._on_begin: Callable[[str], None] | None = None
        self._on_end: Callable[[str], None] | None = None

    def watch(self, began: Callable[[str], None], ended: Callable[[str], None]) -> None:
        """Tell one, once each, that the first output came, and that the last came or nobody wants it; at once if so."""
        self._on_begin, self._on_end = began, ended
        if self._begun:
            began(self.rid)
        if self._put:
            ended(self.rid)

    def put(self, output: Output) -> None:
        """Append an output; what comes after the last one is dropped."""
        if self._put:
            return
        self._queue.put_nowait(output)
        if not self._begun:
            self._begun = True
            if self._on_begin is not None:
                self._on_begin(self.rid)
        if output.finish is not None:
            self._end()

    def _end(self) -> None:
        self._put = True
        if self._on_end is not None:
            self._on_end(self.rid)

    async def __anext__(self) -> Output:
        if self._done:
            raise StopAsyncIteration
        output = await self._queue.get()
        self._done = output.finish is not None
        return output

    def more(self) -> Output | None:
        """The next output where it has come already, so that who is slow can take several at once."""
        if self._done or self._queue.empty():
            return None
        output = self._queue.get_nowait()
        self._done = output.finish is not None
        return output

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._done = True
        if not self._put:
            self._abort(self.rid)
            self._end()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()


class Client(Protocol):
    """What a front end needs of an engine, wherever it runs."""

    @property
    def hello(self) -> Hello: ...
    @property
    def last_pulse(self) -> Pulse | None: ...
    def alive(self, within_s: float = 1.5) -> bool: ...
    async def submit(self, request: Request) -> Outputs: ...
    async def abort(self, rid: str, finish: str = "abort") -> None: ...
    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]: ...
    async def close(self) -> None: ...


class Member(Client, Protocol):
    """A client of one engine among several."""

    restarts: int
    """How often the engine was lost so far."""

    @property
    def why_down(self) -> str:
        """Why the engine does not serve, in a sentence; empty while it does, which needs its `hello` to be there."""

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        """Have `take` told, on the event loop of whoever asks, what the engine has cached; after each loss anew.

        A message with number 0 begins with all there is. Called again, the engine begins anew.
        """


class EngineClient:
    """A connection to an engine. Survives the engine's restart: requests in flight end with an error, new ones work.

    Belongs to the event loop in which `connect` was awaited.
    """

    def __init__(
        self, address: str, *, silent_s: float, clock: Callable[[], float], server_key: bytes | None = None
    ) -> None:
        self._clock = clock
        self._silent_s = silent_s
        self._log = logging.getLogger("stepwell.client")
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, uuid.uuid4().bytes)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.set_hwm(MANY)
        if server_key is not None:
            public, secret = zmq.curve_keypair()
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._connected = False
        self._socket.connect(address)
        self._out: asyncio.Queue[wire.FromFront] = asyncio.Queue()
        self._answers: dict[str, Outputs] = {}
        self._replies: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._ids = itertools.count(1)
        self._hello: Hello | None = None
        self._joined: asyncio.Event = asyncio.Event()
        self._instance = ""
        self._heard = -float("inf")
        self._why = "the engine has not started yet"
        self._last_pulse: Pulse | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._follower: Callable[[KvEvents], None] | None = None
        self._plugins: str | None = None
        self.restarts = 0
        """How often the engine was lost so far."""

    @classmethod
    def join(
        cls,
        address: str,
        *,
        plugins: str,
        silent_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        server_key: bytes | None = None,
    ) -> Self:
        """A client that joins the engine at `address` by itself, as soon as there is one; see `joined`."""
        client = cls(address, silent_s=silent_s, clock=clock, server_key=server_key)
        client._plugins = plugins
        client._tasks = [
            asyncio.create_task(run()) for run in (client._send, client._receive, client._watch, client._keep)
        ]
        return client

    async def joined(self) -> None:
        """Wait until the engine has said what it is. Raises ConfigError where it does not fit."""
        await self._joined.wait()
        self._fit()

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        plugins: str,
        timeout_s: float = 600.0,
        silent_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        server_key: bytes | None = None,
    ) -> Self:
        """Join the engine at `address` and wait until it can serve.

        `plugins`: digest of the plugins in this process, which must be the engine's. An engine that is not heard for
        `silent_s` counts as lost. `server_key`: the engine's public key, where it has one. Raises ConfigError where
        they do not fit together, EngineLost after `timeout_s`.
        """
        client = cls.join(address, plugins=plugins, silent_s=silent_s, clock=clock, server_key=server_key)
        try:
            await asyncio.wait_for(client.joined(), timeout_s)
        except TimeoutError:
            await client.close()
            raise EngineLost(f"no engine answered at {address} within {timeout_s:g} s") from None
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def hello(self) -> Hello:
        """What the engine says of itself."""
        assert self._hello is not None, "connect() returns only after the engine said hello"
        return self._hello

    @property
    def last_pulse(self) -> Pulse | None:
        """The engine's latest sign of life; None before the first."""
        return self._last_pulse

    @property
    def why_down(self) -> str:
        """Why the engine does not serve, in a sentence; empty while it does."""
        if not self._joined.is_set():
            return self._why
        silent = self._clock() - self._heard
        return "" if silent < self._silent_s else f"the engine has been silent for {silent:.1f} s"

    def alive(self, within_s: float = 1.5) -> bool:
        """Whether the serving loop itself was heard in the last `within_s` seconds."""
        return self._joined.is_set() and self._clock() - self._heard <= within_s

    async def submit(self, request: Request) -> Outputs:
        """Send a request; its outputs come from the iterator. Never raises: an engine that is down is an output too."""
        outputs = Outputs(request.rid, self._abort)
        if not self._joined.is_set():
            outputs.put(Output(request.rid, finish="error", error=self._why))
        elif request.rid in self._answers:
            outputs.put(Output(request.rid, finish="refused", error=f"a request {request.rid!r} is in flight already"))
        else:
            self._answers[request.rid] = outputs
            self._out.put_nowait(Submit(request))
        return outputs

    async def abort(self, rid: str, finish: str = "abort") -> None:
        """End a request; its last output still comes, with this `finish`."""
        if rid in self._answers:
            self._out.put_nowait(Abort(rid, finish))

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Ask for a verb of `Controls`. Raises EngineLost, or what the engine says: ConfigError, Conflict, another."""
        if not self._joined.is_set():
            raise EngineLost(self._why)
        id = next(self._ids)
        control = Control(id, verb, dict(given or {}))
        try:
            wire.encode([control])
        except (OverflowError, TypeError, ValueError) as error:
            raise ConfigError(f"what was given with {verb!r} cannot be sent: {error}") from None
        reply = self._replies[id] = asyncio.get_running_loop().create_future()
        self._out.put_nowait(control)
        try:
            return await asyncio.wait_for(reply, timeout_s)
        except TimeoutError:
            raise EngineLost(f"the engine did not answer {verb!r} within {timeout_s:g} s") from None
        finally:
            self._replies.pop(id, None)

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        """See `Member`."""
        self._follower = take
        if self._joined.is_set():
            self._out.put_nowait(Follow())

    async def close(self) -> None:
        """Leave. Whatever is still in flight is aborted and ends with an error."""
        self._lose("this front end closed its connection")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(zmq.ZMQError, TimeoutError):
            await asyncio.wait_for(self._socket.send(wire.encode([wire.Leave()])), 0.1)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    # --- tasks -------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            batch = [await self._out.get()]
            while not self._out.empty():
                batch.append(self._out.get_nowait())
            await self._socket.send(wire.encode(batch))

    async def _receive(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                messages = wire.from_back(frame)
            except msgspec.DecodeError as error:
                self._log.error("a message of the engine cannot be read: %s", error)
                self._lose("the engine speaks another version of the protocol")
                continue
            for message in messages:
                self._take(message)

    async def _watch(self) -> None:
        """Join whatever engine is there now; it ignores what was meant for its predecessor and comes before that."""
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            self._connected = event == zmq.EVENT_CONNECTED
            if self._connected:
                self._out.put_nowait(wire.Join())
                continue
            while await self._socket.poll(0):  # what it still said, its last words among them, comes first
                await asyncio.sleep(0.001)
            if self._joined.is_set():
                self._lose("the engine's process ended")

    async def _keep(self) -> None:
        while True:
            before = self._clock()
            await asyncio.sleep(wire.BEAT_S)
            asleep = self._clock() - before - 2 * wire.BEAT_S
            if asleep > 0:
                self._heard += asleep  # this process did not run, so it could not listen
            if not self._connected:
                continue
            if not self._joined.is_set():
                self._out.put_nowait(wire.Join())
            elif self._clock() - self._heard > self._silent_s:
                self._lose(f"the engine was silent for {self._silent_s:g} s")
            else:
                self._out.put_nowait(wire.Beat())

    # --- states ------------------------------------------------------------------------------------------------

    def _take(self, message: wire.FromBack) -> None:
        match message:
            case Output(rid=rid, finish=finish):
                outputs = self._answers.get(rid) if finish is None else self._answers.pop(rid, None)
                if outputs is not None:
                    outputs.put(message)
            case Pulse():
                self._last_pulse, self._heard = message, self._clock()
                if self._hello is not None:
                    self._hello = heard(self._hello, message)
            case Reply(id=id):
                self._resolve(id, message)
            case KvEvents():
                self._follow(message)
            case wire.Welcome(instance=instance, hello=hello):
                self._welcome(instance, hello)
            case wire.Stranger():
                if self._joined.is_set():
                    self._lose("the engine was restarted")
            case wire.Ended(why=why):
                self._lose(why)

    def _follow(self, message: KvEvents) -> None:
        """What whoever follows makes of it must not end the answers to requests, which come the same way."""
        if self._follower is None:
            return
        try:
            self._follower(message)
        except Exception:
            self._log.exception("word of what the engine has cached was lost")

    def _resolve(self, id: int, reply: Reply) -> None:
        future = self._replies.pop(id, None)
        if future is None or future.done():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(raised(reply))

    def _welcome(self, instance: str, hello: Hello) -> None:
        if instance == self._instance and self._joined.is_set():
            return  # the answer to a second Join
        if self._joined.is_set():
            self._lose("the engine was restarted")
        if self._hello is not None and hello.plugins != self._hello.plugins:
            self._why = "the engine came back with other plugins than this front end has"
            return
        self._instance, self._hello, self._heard = instance, hello, self._clock()
        self._joined.set()
        if self._follower is not None:
            self._out.put_nowait(Follow())

    def _lose(self, why: str) -> None:
        """The engine is gone: nothing that it was asked will be answered."""
        if self._joined.is_set():
            self.restarts += 1
        self._joined.clear()
        self._why = why
        while not self._out.empty():
            self._out.get_nowait()
        answers, self._answers = self._answers, {}
        for rid, outputs in answers.items():
            outputs.put(Output(rid, finish="error", error=why))
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            if not reply.done():
                reply.set_exception(EngineLost(why))

    def _abort(self, rid: str) -> None:
        if self._answers.pop(rid, None) is not None:
            self._out.put_nowait(Abort(rid))

    def _fit(self) -> None:
        if self._plugins is not None and self.hello.plugins != self._plugins:
            raise ConfigError(
                "engine and front end found different plugins: start both from the same environment with the same "
                f"STEPWELL_DISABLE (digests {self.hello.plugins[:12]} and {self._plugins[:12]})"
            )
