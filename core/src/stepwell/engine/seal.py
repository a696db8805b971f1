"""The trailer that every page carries into storage and must still have when it comes back.

It says whose page it is and what its bytes sum up to. A page that was cut, damaged, swapped with another or written by
another version is told from a good one before anything uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from stepwell.cache.arena import BLOCK, TRAILER_BYTES
from stepwell.types import Done, Failed, PageKey, PageResult

MAGIC = b"STPWLPG1"
"""Names the format; another layout of the trailer is another magic."""

_HEAD = struct.Struct("<8sQ40s")
_SUM = struct.Struct("<Q")

assert _HEAD.size + _SUM.size == TRAILER_BYTES, "the arena reserves exactly a trailer"


@dataclass(frozen=True, slots=True)
class Damaged(Failed):
    """Storage gave what is not the page: its fault, but no sign that the next call would fail."""


def seal(slot: memoryview, payload: int, key: PageKey) -> None:
    """Write the trailer behind the first `payload` bytes of a slot."""
    head = _HEAD.pack(MAGIC, payload, key)
    total = xxh3_64_intdigest(slot[:payload], xxh3_64_intdigest(head))
    slot[payload : payload + TRAILER_BYTES] = head + _SUM.pack(total)


def check(slot: memoryview, payload: int, key: PageKey) -> str | None:
    """Why a slot's bytes are not the page `key`; None if they are."""
    end = payload + _HEAD.size
    head = slot[payload:end]
    if head != _HEAD.pack(MAGIC, payload, key):
        return _difference(bytes(head), payload, key)
    (total,) = _SUM.unpack(slot[end : payload + TRAILER_BYTES])
    if total != xxh3_64_intdigest(slot[:payload], xxh3_64_intdigest(head)):
        return "the checksum differs"
    return None


def inspect(slot: memoryview, key: PageKey) -> str | None:
    """Why a slot's bytes are not the page `key`, where nobody knows how long its payload is; None if they are."""
    wrong = [check(slot, payload, key) for payload in payloads(slot)]
    if not wrong:
        return "no trailer: the page is cut short, or of another format"
    return None if None in wrong else wrong[0]


def payloads(slot: memoryview) -> list[int]:
    """The lengths that the payload of a slot may have: where a trailer lies that says that it lies there.

    What pads a slot to whole blocks follows the trailer, so it is looked for in the last block only. Bytes of a payload
    may look like a trailer by chance, so there can be several.
    """
    start = max(0, len(slot) - BLOCK - TRAILER_BYTES)
    tail = bytes(slot[start:])
    found: list[int] = []
    at = tail.find(MAGIC)
    while 0 <= at <= len(tail) - TRAILER_BYTES:
        _, length, _ = _HEAD.unpack_from(tail, at)
        if length == start + at:
            found.append(length)
        at = tail.find(MAGIC, at + 1)
    return found


def seal_all(slots: Sequence[memoryview], payload: int, keys: Sequence[PageKey]) -> None:
    """Write the trailers of pages that are about to be stored."""
    for slot, key in zip(slots, keys, strict=True):
        seal(slot, payload, key)


def check_all(
    slots: Sequence[memoryview], payload: int, keys: Sequence[PageKey], results: Sequence[PageResult]
) -> list[PageResult]:
    """The results of a read, where a page that storage called done but is not the page asked for has failed."""
    checked: list[PageResult] = []
    for slot, key, result in zip(slots, keys, results, strict=True):
        wrong = check(slot, payload, key) if isinstance(result, Done) else None
        checked.append(result if wrong is None else Damaged(wrong))
    return checked


def _difference(head: bytes, payload: int, key: PageKey) -> str:
    magic, length, whose = _HEAD.unpack(head)
    if magic != MAGIC:
        return "the page is cut short, or of another format"
    if length != payload:
        return f"the page holds {length} bytes, not {payload}"
    return "it is another page" if whose != key else "the trailer differs"
