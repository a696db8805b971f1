"""Records of an index file: a page that was stored, one that was deleted, or the end.

    key 40 | offset 8 | length 4 | kind 4 | value 8 | xxh32 of all that 4 | zero 4

`value` is the checksum of a page's bytes, or the number of the segment that a deleted page lay in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest, xxh32_intdigest

_BODY = struct.Struct("<40sQIIQ")
_SUM = struct.Struct("<II")
RECORD_BYTES = _BODY.size + _SUM.size
KEY_BYTES = 40

digest = xxh3_64_intdigest
"""Checksum of a page's bytes."""


class Kind(IntEnum):
    """What a record says."""

    PAGE = 1
    GONE = 2
    SEALED = 3


KINDS = frozenset(Kind)


class Record(NamedTuple):
    """One of them."""

    kind: Kind
    key: bytes
    offset: int
    length: int
    value: int

    def pack(self) -> bytes:
        """Its bytes."""
        body = _BODY.pack(self.key, self.offset, self.length, self.kind, self.value)
        return body + _SUM.pack(xxh32_intdigest(body), 0)


def pack_pages(pages: Sequence[tuple[bytes, int, int]], length: int) -> bytes:
    """The records of pages of one length, of which each is (key, offset, checksum)."""
    records = []
    for key, offset, checksum in pages:
        body = _BODY.pack(key, offset, length, 1, checksum)
        records.append(body + _SUM.pack(xxh32_intdigest(body), 0))
    return b"".join(records)


SEALED = Record(Kind.SEALED, bytes(KEY_BYTES), 0, 0, 0)


def unpack(data: memoryview, at: int) -> Record | None:
    """The record at an offset; None where its bytes are not (or not yet) those of one."""
    body = data[at : at + _BODY.size]
    total, _ = _SUM.unpack_from(data, at + _BODY.size)
    if total != xxh32_intdigest(body):
        return None
    key, offset, length, kind, value = _BODY.unpack(body)
    if kind not in KINDS:
        return None
    return Record(Kind(kind), key, offset, length, value)
