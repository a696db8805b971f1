"""Sinks for KV events: a file of JSON lines, and a ZeroMQ publisher for routers on other machines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from stepwell.abc.sink import Event, PagesRemoved, PagesStored, Sink, TierCleared
from stepwell.offers import Context


@dataclass(frozen=True, slots=True)
class JsonlConfig:
    """The `[sink]` table when `use = "jsonl"`."""

    path: Path
    """File to append to; one event a line."""


@dataclass(frozen=True, slots=True)
class ZmqConfig:
    """The `[sink]` table when `use = "zmq"`."""

    address: str
    """Where subscribers connect, such as `tcp://127.0.0.1:5557`."""
    topic: str = "kv"
    """First frame of every message."""


class JsonlSink(Sink):
    """Appends events to a file, keys in hexadecimal."""

    def __init__(self, config: JsonlConfig, context: Context) -> None:
        config.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = config.path.open("ab")

    def take(self, events: Sequence[Event]) -> None:
        self._file.writelines(msgspec.json.encode(plain(event)) + b"\n" for event in events)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ZmqSink(Sink):
    """Publishes each batch as (topic, sequence number of 8 bytes, JSON list): a gap in the numbers is a loss."""

    def __init__(self, config: ZmqConfig, context: Context) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(config.address)
        self._topic = config.topic.encode()
        self._numbers = itertools.count()

    def take(self, events: Sequence[Event]) -> None:
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart([self._topic, number, msgspec.json.encode([plain(event) for event in events])])

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def plain(event: Event) -> dict[str, object]:
    """An event as JSON has it."""
    match event:
        case PagesStored():
            return {
                "event": "stored",
                "tier": event.tier.value,
                "group": event.group,
                "keys": [key.hex() for key in event.keys],
                "parent": event.parent.hex() if event.parent is not None else None,
                "page_tokens": event.page_tokens,
            }
        case PagesRemoved():
            keys = [key.hex() for key in event.keys]
            return {"event": "removed", "tier": event.tier.value, "group": event.group, "keys": keys}
        case TierCleared():
            return {"event": "cleared", "tier": event.tier.value}
