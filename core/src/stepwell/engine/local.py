"""An engine on a thread of this process, for Python callers and for tests; the same messages, no socket."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from stepwell.engine.client import EngineLost, Outputs, raised
from stepwell.engine.loop import Said
from stepwell.engine.messages import Abort, Control, Follow, Hello, KvEvents, Output, Pulse, Reply, Submit, heard
from stepwell.engine.parts import Parts
from stepwell.engine.shell import Shell
from stepwell.schedule.request import Request


class LocalEngine:
    """A shell, and who waits for what it says. Everything is for any thread."""

    def __init__(self, build: Callable[[], Parts], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start; raises what the start raises."""
        self._clock = clock
        self._lock = threading.Lock()
        self._takers: dict[str, Callable[[Output], None]] = {}
        self._replies: dict[int, queue.SimpleQueue[Reply]] = {}
        self._ids = itertools.count(1)
        self._heard = clock()
        self._closed = ""
        self.last_pulse: Pulse | None = None
        self._follower: Callable[[KvEvents], None] | None = None
        self._shell = Shell(build, self._deliver, ended=self._ended, clock=clock)
        parts = self._shell.start()
        self._hello = parts.hello
        self.summary: Sequence[str] = parts.summary

    @property
    def hello(self) -> Hello:
        """What the engine says of itself."""
        return self._hello if self.last_pulse is None else heard(self._hello, self.last_pulse)

    @property
    def why_down(self) -> str:
        """Why the engine does not serve; empty while it does."""
        return self._closed

    def alive(self, within_s: float = 1.5) -> bool:
        """Whether the serving loop was heard in the last `within_s` seconds."""
        return not self._closed and self._clock() - self._heard <= within_s

    def submit(self, request: Request, take: Callable[[Output], None]) -> None:
        """Ask; `take` gets the outputs, on the engine's thread, and must not block."""
        with self._lock:
            refusal = self._closed or (
                f"a request {request.rid!r} is in flight already" if request.rid in self._takers else ""
            )
            if not refusal:
                self._takers[request.rid] = take
        if refusal:
            take(Output(request.rid, finish="error" if self._closed else "refused", error=refusal))
        else:
            self._shell.post(Submit(request))

    def abort(self, rid: str, finish: str = "abort") -> None:
        """End a request; its last output still comes."""
        self._shell.post(Abort(rid, finish))

    def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Ask for a verb of `Controls`, and wait for the answer."""
        id = next(self._ids)
        answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                raise EngineLost(self._closed)
            self._replies[id] = answers
        self._shell.post(Control(id, verb, dict(given or {})))
        try:
            reply = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise EngineLost(f"the engine did not answer {verb!r} within {timeout_s:g} s") from None
        finally:
            with self._lock:
                self._replies.pop(id, None)
        if reply.error is not None:
            raise raised(reply)
        return reply.value

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        """Have one, in place of any other, told what is cached, all there is first; on a thread of the engine."""
        self._follower = take
        self._shell.post(Follow())

    def close(self, *, drain_s: float = 0.0, timeout_s: float = 60.0) -> None:
        """End; requests in flight get `drain_s` to finish. A second call does nothing."""
        with self._lock:
            first, self._closed = not self._closed, self._closed or "the engine is closed"
        if first:
            self._shell.stop("the engine is closed", drain_s=drain_s)
        if self._shell.join(timeout_s):
            self._ended(self._closed)

    def _deliver(self, said: Sequence[Said]) -> None:
        for one in said:
            match one:
                case Output(rid=rid, finish=finish):
                    with self._lock:
                        take = self._takers.get(rid) if finish is None else self._takers.pop(rid, None)
                    if take is not None:
                        take(one)
                case Reply(id=id):
                    with self._lock:
                        answers = self._replies.get(id)
                    if answers is not None:
                        answers.put(one)
                case KvEvents():
                    if self._follower is not None:
                        self._follower(one)
                case Pulse():
                    self.last_pulse, self._heard = one, self._clock()

    def _ended(self, why: str) -> None:
        with self._lock:
            self._closed = why
            left = list(self._takers.items())
            self._takers.clear()
            replies = list(self._replies.items())
        for rid, take in left:  # they came while the loop was ending
            take(Output(rid, finish="error", error=why))
        for id, answers in replies:
            answers.put(Reply(id, error=why))


class LocalClient:
    """The same engine as a front end on an event loop sees it: a `Client`."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.alive = engine.alive
        self.restarts = 0

    @property
    def hello(self) -> Hello:
        return self._engine.hello

    @property
    def last_pulse(self) -> Pulse | None:
        return self._engine.last_pulse

    @property
    def why_down(self) -> str:
        return self._engine.why_down

    async def submit(self, request: Request) -> Outputs:
        loop = asyncio.get_running_loop()
        outputs = Outputs(request.rid, self._engine.abort)
        self._engine.submit(request, lambda output: _call(loop, lambda: outputs.put(output)))
        return outputs

    async def abort(self, rid: str, finish: str = "abort") -> None:
        self._engine.abort(rid, finish)

    async def control(
        self, verb: str, timeout_s: float | None = 30.0, given: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        return await asyncio.to_thread(self._engine.control, verb, timeout_s, given)

    def follow(self, take: Callable[[KvEvents], None]) -> None:
        loop = asyncio.get_running_loop()
        self._engine.follow(lambda message: _call(loop, lambda: take(message)))

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    if not loop.is_closed():  # else nobody is left to listen
        loop.call_soon_threadsafe(what)
