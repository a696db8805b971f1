"""Messages between processes: batches of msgpack, and the few messages that only the connection itself needs.

Every frame is a list of messages, so that what a tick produces for a front end costs one send.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.engine.messages import Abort, Control, Follow, Hello, KvEvents, Output, Pulse, Reply, Submit

BEAT_S = 0.5
"""Seconds between two signs of life, in either direction."""


class Join(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: I am here; answered by a Welcome as soon as the engine can serve."""


class Beat(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: I am still here."""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Front end to engine: I go; abort what I asked for."""


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: joined. `instance` differs for every start of an engine."""

    instance: str
    hello: Hello


class Stranger(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: I do not know you (any more), whatever you sent was not done."""


class Ended(msgspec.Struct, tag=True, frozen=True):
    """Engine to front end: I end, for this reason."""

    why: str


FromFront = Submit | Abort | Control | Follow | Join | Beat | Leave
FromBack = Output | Reply | Pulse | KvEvents | Welcome | Stranger | Ended

_encoder = msgspec.msgpack.Encoder()
_front = msgspec.msgpack.Decoder(list[FromFront])
_back = msgspec.msgpack.Decoder(list[FromBack])


def encode(messages: Sequence[FromFront] | Sequence[FromBack]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def from_front(frame: bytes) -> list[FromFront]:
    """Messages of a frame that a front end sent. Raises msgspec.DecodeError."""
    return _front.decode(frame)


def from_back(frame: bytes) -> list[FromBack]:
    """Messages of a frame that an engine sent. Raises msgspec.DecodeError."""
    return _back.decode(frame)
