"""What an engine and a storage's process say to each other: one question and one answer at a time on a line.

A line is one end of a Unix socket pair, held by one thread on either side: no call waits for another's, no message
needs a number, and a process that ends ends all its lines. Pages never travel: both map the same memory, so that a
question names a page by its key and by where it lies in the arena, and an answer is a byte a page.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.types import (
    DIGEST_BYTES,
    DONE,
    MISSING,
    TAG_BYTES,
    ArenaView,
    Done,
    Failed,
    Missing,
    PageKey,
    PageResult,
    PageViews,
    StoredPage,
)

KEY_BYTES = DIGEST_BYTES + TAG_BYTES
FIRST_REASON = 2
"""The byte of a page that failed for the first of an answer's reasons; less is done and missing."""
LAST_REASON = 255

_HEAD = struct.Struct("<IBxxxII")
_SIZE = struct.Struct("<Q")
_BUFFER = 64 * 1024


class Verb(IntEnum):
    """What is asked."""

    START = 0
    ATTACH = 1
    CONTAINS = 2
    READ = 3
    WRITE = 4
    DELETE = 5
    SCAN = 6
    NEXT = 7


class Word(IntEnum):
    """How it is answered."""

    DONE = 0
    END = 1
    ERROR = 2


class StorageError(Exception):
    """What a storage raised in its own process."""


class Line:
    """One end. Not for two threads at once."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray(_BUFFER)

    def send(self, what: int, count: int = 0, more: int = 0, *parts: bytes) -> None:
        """Say something: a code, two numbers, and bytes."""
        self._end.sendall(b"".join((_HEAD.pack(sum(map(len, parts)), what, count, more), *parts)))

    def receive(self) -> tuple[int, int, int, memoryview]:
        """What the other end said; the bytes stay until the next call. EOFError where it is gone."""
        have, need = 0, _HEAD.size
        while have < need:
            got = self._end.recv_into(memoryview(self._buffer)[have:])
            if not got:
                raise EOFError
            if have < _HEAD.size <= have + got:
                need += _HEAD.unpack_from(self._buffer)[0]
            have += got
            if need > len(self._buffer):
                self._buffer = self._buffer[:have] + bytes(need - have)  # a new one: views of the old may be about
        _, what, count, more = _HEAD.unpack_from(self._buffer)
        return what, count, more, memoryview(self._buffer)[_HEAD.size : need]

    def end(self) -> None:
        """Have whoever waits on this line hear that it is over."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of this end."""
        self._end.close()


# --- questions ---------------------------------------------------------------------------------------------------


def joined(keys: Sequence[PageKey]) -> bytes:
    """Keys in one piece. ValueError where one of them is no page key."""
    whole = b"".join(keys)
    if len(whole) != KEY_BYTES * len(keys):
        raise ValueError(f"page keys have {KEY_BYTES} bytes each")
    return whole


def parted(whole: memoryview) -> list[PageKey]:
    """The keys again."""
    one = bytes(whole)
    return [one[at : at + KEY_BYTES] for at in range(0, len(one), KEY_BYTES)]


def located(views: PageViews, arena: ArenaView) -> tuple[bytes, bytes]:
    """Where pages lie from the arena's start, and the sizes of their segments. ValueError for one that is outside."""
    offsets = views.addresses - arena.address
    if len(offsets) and (offsets.min() < 0 or (offsets + views.sizes).max() > arena.nbytes):
        raise ValueError("pages outside the host tier's memory cannot be reached from another process")
    return offsets.astype(np.int64, copy=False).tobytes(), views.sizes.tobytes()


def views_of(places: memoryview, pages: int, segments: int, arena: ArenaView) -> PageViews:
    """The views again, in this process's addresses."""
    numbers: npt.NDArray[np.int64] = np.frombuffer(places, dtype=np.int64).copy()
    addresses = numbers[: pages * segments].reshape(pages, segments) + arena.address
    return PageViews(addresses, numbers[pages * segments :], arena.memory, arena.address)


# --- answers -----------------------------------------------------------------------------------------------------


def coded(results: Sequence[PageResult]) -> tuple[bytes, bytes]:
    """A byte a page, and the reasons of those that failed. TypeError for what is no result of a page."""
    reasons: dict[str, int] = {}

    def code(result: PageResult) -> int:
        match result:
            case Done():
                return 0
            case Missing():
                return 1
            case Failed(reason=reason):
                known = reason in reasons or FIRST_REASON + len(reasons) <= LAST_REASON
                return reasons.setdefault(reason, FIRST_REASON + len(reasons)) if known else LAST_REASON
        raise TypeError(f"a {type(result).__name__} came in place of a page's result")

    codes = bytes([0 if one is DONE else 1 if one is MISSING else code(one) for one in results])
    return codes, msgspec.msgpack.encode(list(reasons)) if reasons else b""


def decoded(count: int, body: memoryview) -> list[PageResult]:
    """The results again."""
    reasons = msgspec.msgpack.decode(body[count:], type=list[str]) if len(body) > count else []
    table: list[PageResult] = [DONE, MISSING, *map(Failed, reasons)]
    return [table[code] for code in body[:count]]


def listed(pages: Sequence[StoredPage]) -> bytes:
    """Stored pages in one piece."""
    return b"".join([joined([page.key]) + _SIZE.pack(page.nbytes) for page in pages])


def unlisted(whole: memoryview) -> list[StoredPage]:
    """The pages again."""
    return [StoredPage(bytes(key), size) for key, size in struct.iter_unpack(f"<{KEY_BYTES}sQ", whole)]
