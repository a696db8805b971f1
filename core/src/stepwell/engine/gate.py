"""The engine's side of the wire: front ends come and go, each hears of its own requests and nobody else's.

Runs on the process's main thread, beside the shell's loop: what the loop says reaches the socket through a queue.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import zmq

from stepwell.engine import wire
from stepwell.engine.client import MANY
from stepwell.engine.loop import News, Said
from stepwell.engine.messages import Abort, Control, Follow, Hello, KvEvents, Output, Pulse, Reply, Submit, heard

SILENT_S = 10.0
"""A front end that was not heard for so long is gone."""
POLL_S = 0.5


@dataclass
class _Front:
    heard: float
    rids: set[str] = field(default_factory=set)
    follows: bool = False
    """Whether it wants to know what is cached."""


class Gate:
    """A ROUTER socket and the front ends behind it."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        post: Callable[..., None],
        *,
        silent_s: float = SILENT_S,
        clock: Callable[[], float] = time.monotonic,
        keys: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`post(*news)` hands something to the loop.

        `keys`: public and secret; then only who knows the public one is heard, and all is encrypted (CurveZMQ).
        """
        self._hello, self._post, self._silent_s, self._clock = hello, post, silent_s, clock
        self._log = logging.getLogger("stepwell.gate")
        self._instance = uuid.uuid4().hex
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a front end that went is an error, not silence
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.set_hwm(MANY)
        if keys is not None:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys[1])
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where it is reached: `address` with the port that it got."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._out: deque[Said] = deque()
        self._fronts: dict[bytes, _Front] = {}
        self._owners: dict[str, bytes] = {}
        self._asked: dict[int, tuple[bytes, int]] = {}
        self._next_id = 0
        self._awake = clock()

    def deliver(self, said: Sequence[Said]) -> None:
        """Take what the loop says; for any thread."""
        self._out.extend(said)
        self.wake()

    def wake(self) -> None:
        """End the wait that `turn` is in; for any thread, and for signal handlers."""
        with suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake_write, b"!")

    def turn(self, wait_s: float = POLL_S) -> None:
        """Wait for news from either side, and pass them on."""
        ready = dict(self._poller.poll(int(wait_s * 1000)))
        if self._wake_read in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_read, 65536)
        self._pass_in()
        self._pass_out()
        self._forget_silent()

    def close(self, why: str) -> None:
        """Say goodbye, and close."""
        self._pass_out()
        for identity in list(self._fronts):
            self._send(identity, [wire.Ended(why)])
        self._socket.close()
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- from front ends ---------------------------------------------------------------------------------------

    def _pass_in(self) -> None:
        while True:
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                self._log.warning("a message of the wrong shape came; it is ignored")
                continue
            try:
                messages = wire.from_front(frame)
            except msgspec.DecodeError as error:
                self._log.warning("a front end's message cannot be read (%s): it is told to join anew", error)
                self._forget(identity, "sent what cannot be read")
                self._send(identity, [wire.Stranger()])
                continue
            self._take(identity, messages)

    def _take(self, identity: bytes, messages: Sequence[wire.FromFront]) -> None:
        news: list[News] = []
        for message in messages:
            front = self._fronts.get(identity)
            match message:
                case wire.Join():
                    self._forget(identity, "")  # whatever it asked before, it has given up
                    self._fronts[identity] = _Front(self._clock())
                    self._send(identity, [wire.Welcome(self._instance, self._hello)])
                    continue
                case wire.Leave():
                    self._forget(identity, "")
                    continue
            if front is None:
                self._send(identity, [wire.Stranger()])
                break
            front.heard = self._clock()
            self._pass(identity, front, message, news)
        if news:
            self._post(*news)

    def _pass(self, identity: bytes, front: _Front, message: wire.FromFront, news: list[News]) -> None:
        match message:
            case Submit(request=request) if request.rid in self._owners:
                text = f"a request {request.rid!r} is in flight already"
                self._send(identity, [Output(request.rid, finish="refused", error=text)])
            case Submit(request=request):
                self._owners[request.rid] = identity
                front.rids.add(request.rid)
                news.append(message)
            case Abort(rid=rid) if self._owners.get(rid) == identity:
                news.append(message)
            case Follow(on=on):
                front.follows = on
                news.append(Follow(any(one.follows for one in self._fronts.values())))
            case Control():
                self._next_id += 1
                self._asked[self._next_id] = (identity, message.id)
                news.append(msgspec.structs.replace(message, id=self._next_id))

    # --- to front ends -----------------------------------------------------------------------------------------

    def _pass_out(self) -> None:
        batches: dict[bytes, list[wire.FromBack]] = {}
        while self._out:
            said = self._out.popleft()
            match said:
                case Output(rid=rid, finish=finish):
                    owner = self._owners.get(rid) if finish is None else self._owners.pop(rid, None)
                    if owner is None:
                        continue  # its front end is gone
                    if finish is not None and owner in self._fronts:
                        self._fronts[owner].rids.discard(rid)
                    batches.setdefault(owner, []).append(said)
                case Reply(id=id):
                    if id in self._asked:
                        owner, its_id = self._asked.pop(id)
                        batches.setdefault(owner, []).append(msgspec.structs.replace(said, id=its_id))
                case KvEvents():
                    for identity, front in self._fronts.items():
                        if front.follows:
                            batches.setdefault(identity, []).append(said)
                case Pulse():
                    self._hello = heard(self._hello, said)
                    for identity in self._fronts:
                        batches.setdefault(identity, []).append(said)
        for identity, batch in batches.items():
            self._send(identity, batch)

    def _send(self, identity: bytes, messages: Sequence[wire.FromBack]) -> None:
        try:
            self._socket.send_multipart([identity, wire.encode(messages)], zmq.NOBLOCK)
        except zmq.Again:
            self._forget(identity, "does not take its messages")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(identity, "has gone")

    # --- those that went ---------------------------------------------------------------------------------------

    def _forget_silent(self) -> None:
        now = self._clock()
        asleep = max(0.0, now - self._awake - 2 * POLL_S)
        self._awake = now
        for front in self._fronts.values() if asleep else ():
            front.heard += asleep  # this process did not run, so it could not listen
        for identity in [one for one, front in self._fronts.items() if now - front.heard > self._silent_s]:
            self._forget(identity, f"was silent for {self._silent_s:g} s")

    def _forget(self, identity: bytes, why: str) -> None:
        """A front end is no more: abort what it asked for."""
        front = self._fronts.pop(identity, None)
        if front is None:
            return
        if why:
            self._log.warning("a front end %s; its %d requests are aborted", why, len(front.rids))
        for rid in front.rids:
            self._owners.pop(rid, None)
        for id in [id for id, (owner, _) in self._asked.items() if owner == identity]:
            del self._asked[id]
        self._post(*(Abort(rid) for rid in front.rids))
        if front.follows and not any(one.follows for one in self._fronts.values()):
            self._post(Follow(False))
