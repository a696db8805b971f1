"""A seal: a small page of its own beside a page's parts, which says whose they are and what their bytes sum up to.

SGLang's pages leave no room for a trailer, so the seal is stored last and looked for first. A page without one is not
there; a page whose bytes are not those that were sealed (cut, damaged, swapped, or written by two at once) is a miss.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from stepwell import PageKey

MAGIC = b"STPWLSG1"
_HEAD = struct.Struct("<8sQ40s")
_SUM = struct.Struct("<Q")
SIZE = _HEAD.size + _SUM.size


def seal(parts: Sequence[memoryview], key: PageKey) -> bytes:
    """The seal of a page whose parts are these."""
    head = _HEAD.pack(MAGIC, sum(map(len, parts)), key)
    total = xxh3_64_intdigest(head)
    for part in parts:
        total = xxh3_64_intdigest(part, total)
    return head + _SUM.pack(total)


def put(slot: memoryview, text: bytes) -> None:
    """Write a seal into its slot; what follows is zero, so that equal pages have equal slots."""
    slot[:SIZE] = text
    slot[SIZE:] = bytes(len(slot) - SIZE)
