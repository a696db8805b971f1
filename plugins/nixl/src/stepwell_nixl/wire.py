"""What a client and a peer say to each other: frames of a length and a message. Pages never travel here."""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

VERSION = 1
HEAD = struct.Struct("<I")
FIRST_MOST = 1 << 16
"""Most bytes of the message that a stranger may send."""
MOST = 1 << 26
"""Most bytes of any other."""
HELD = -1
"""In place of an address: the page is there already, or (when reading) is not there."""
FULL = -2
"""In place of an address: there is no room."""


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """One message. Keys are one string of keys of 40 bytes, addresses one of int64."""


class Hello(Message, frozen=True):
    """The first: which protocol, and the token that the peer was started with."""

    version: int
    token: str


class Welcome(Message, frozen=True):
    """How to reach the memory: NIXL's metadata of the peer's agent."""

    metadata: bytes
    nbytes: int
    most: int
    """Bytes of the largest page."""


class Refused(Message, frozen=True):
    """No, and why."""

    reason: str


class Allocate(Message, frozen=True):
    """Slots to write pages to."""

    keys: bytes
    size: int


class Pin(Message, frozen=True):
    """Slots to read pages from, which stay as they are until they are let go."""

    keys: bytes
    size: int


class Lent(Message, frozen=True):
    """Slots, under a number that ends with `Publish` or `LetGo`, or with the connection."""

    lease: int
    addresses: bytes


class Publish(Message, frozen=True):
    """These of a lease's slots were written whole; the lease ends."""

    lease: int
    which: bytes
    """A byte a slot: 1 where it was."""


class LetGo(Message, frozen=True):
    """The lease ends. Has no answer."""

    lease: int


class Find(Message, frozen=True):
    """Ask which pages are there."""

    keys: bytes


class Held(Message, frozen=True):
    """A byte a key: 1 where it is."""

    which: bytes


class Delete(Message, frozen=True):
    """Forget these."""

    keys: bytes


class List(Message, frozen=True):
    """Ask for pages from the `start`-th on of those that were there when 0 was asked for."""

    start: int


class Listed(Message, frozen=True):
    """Some pages, none at the end."""

    keys: bytes
    sizes: bytes


class Done(Message, frozen=True):
    """It is done."""


Request = Hello | Allocate | Pin | Publish | LetGo | Find | Delete | List
Reply = Welcome | Refused | Lent | Held | Listed | Done

_encoder = msgspec.msgpack.Encoder()
requests = msgspec.msgpack.Decoder(Request)
replies = msgspec.msgpack.Decoder(Reply)

R = TypeVar("R", bound=Message)


def frame(message: Message) -> bytes:
    """A message as it travels."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body)) + body


class Line:
    """A client's end of a connection. OSError where the peer does not answer as it should."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tell(self, message: Request) -> None:
        """Say something that has no answer."""
        self._socket.sendall(frame(message))

    def ask(self, message: Request, expected: type[R]) -> R:
        """Say something and wait for the answer."""
        self.tell(message)
        (length,) = HEAD.unpack(self._receive(HEAD.size))
        if length > MOST:
            raise ConnectionError(f"the peer sent a message of {length} bytes")
        try:
            reply = replies.decode(self._receive(length))
        except msgspec.MsgspecError as error:
            raise ConnectionError(f"the peer sent what is no answer: {error}") from None
        if isinstance(reply, Refused):
            raise ConnectionError(reply.reason)
        if not isinstance(reply, expected):
            raise ConnectionError(f"the peer answered {type(reply).__name__} to {type(message).__name__}")
        return reply

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _receive(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("the peer hung up")
            view = view[got:]
        return bytes(data)
