"""A small real arena: shared memory with slots, and canaries around what a call may touch."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stepwell import PageViews

ALIGN = 4096
SHM = Path("/dev/shm")


class KitArena:
    """Host memory of `count` slots of one group, as core would lend it (a `stepwell.ArenaView`).

    With `parts` a slot holds so many of `page_bytes` each, and views are of parts: all of a page, then of the next.
    A `named` one has a name in /dev/shm until `unname`.
    """

    def __init__(self, page_bytes: int, count: int, *, parts: int = 1, named: bool = False) -> None:
        self.page_bytes = page_bytes
        self.count = count
        self._parts, self._apart = parts, -(-page_bytes // ALIGN) * ALIGN
        self.stride = parts * self._apart
        self.nbytes = self.stride * count
        self.fd, self.name = _named(self.nbytes) if named else (_shared(self.nbytes), "")
        self._map = mmap.mmap(self.fd, self.nbytes)
        self.memory = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def unname(self) -> None:
        """Take its name away: from now on only those have it that opened it."""
        if self.name:
            (SHM / self.name).unlink()
            self.name = ""

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)
            self.unname()

    def slots(self, group: int) -> tuple[int, int, int]:
        """(offset of slot 0, stride, payload bytes of a part) of the only group."""
        return 0, self.stride, self.page_bytes

    def parts(self, group: int) -> tuple[int, int]:
        """(parts of a slot, bytes from one to the next) of the only group."""
        return self._parts, self._apart

    def views(self, slots: Sequence[int], size: int = 0) -> PageViews:
        """The pages in these slots, part by part; of another size than the arena's where `size` says so."""
        starts = [slot * self.stride + part * self._apart for slot in slots for part in range(self._parts)]
        return PageViews.of(self.memory, self.address, starts, size or self.page_bytes)

    def fill(self, slot: int, data: bytes) -> None:
        """Put the bytes of a page into a slot."""
        at = slot * self.stride
        self.memory[at : at + len(data)] = data

    def page(self, slot: int) -> bytes:
        """The bytes of the page in a slot, or of its first part."""
        return self.slack(slot)[: self.page_bytes]

    def slack(self, slot: int) -> bytes:
        """A slot's bytes, those behind its page included."""
        at = slot * self.stride
        return bytes(self.memory[at : at + self.stride])

    def paint(self, byte: int) -> None:
        """Fill everything with one byte, so that a touched slot shows."""
        ctypes.memset(self.address, byte, self.nbytes)


def _named(nbytes: int) -> tuple[int, str]:
    fd, path = tempfile.mkstemp(prefix="stepwell-kit-", dir=SHM)
    os.ftruncate(fd, nbytes)
    return fd, Path(path).name


def _shared(nbytes: int) -> int:
    if sys.platform == "linux":
        fd = os.memfd_create("stepwell-kit")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd
