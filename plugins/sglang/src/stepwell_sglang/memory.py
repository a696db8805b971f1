"""Memory that storages are lent: SGLang's own buffers as they lie, and a small one of ours for what needs room."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell import PageViews

BLOCK = 4096
SHM = Path("/dev/shm")
LEND_S = 30.0
"""How long a call waits for room in the scratch memory before its pages have failed."""

Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Region:
    """An ArenaView of memory that lies at `address` in this process and belongs to somebody else."""

    address: int
    nbytes: int
    memory: memoryview
    name: str = ""
    fd: int = -1

    @classmethod
    def at(cls, address: int, nbytes: int) -> Region:
        """Memory by its address. Valid as long as its owner keeps it."""
        whole = (ctypes.c_char * nbytes).from_address(address)
        return cls(address, nbytes, memoryview(whole).cast("B"))

    def slots(self, group: int) -> tuple[int, int, int]:
        """SGLang's pools cut it as they like: one slot, the whole."""
        return 0, self.nbytes, self.nbytes

    def parts(self, group: int) -> tuple[int, int]:
        return 1, self.slots(group)[1]

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether these bytes lie inside."""
        return self.address <= address and address + nbytes <= self.address + self.nbytes

    def views(self, addresses: Addresses, nbytes: int) -> PageViews:
        """Pages of one segment each."""
        return PageViews(addresses.reshape(-1, 1), np.array([nbytes], np.int64), self.memory, self.address)

    def buffers(self, addresses: Addresses, nbytes: int) -> list[memoryview]:
        """The same as buffers."""
        return self.views(addresses, nbytes).buffers()


def regions(ranges: Sequence[tuple[int, int]]) -> list[Region]:
    """Regions over (address, bytes) ranges, joined where they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for start, nbytes in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], start + nbytes)
        else:
            joined.append((start, start + nbytes))
    return [Region.at(start, end - start) for start, end in joined if end > start]


class Slots:
    """Slots of one size in a scratch memory, lent for a call each."""

    def __init__(self, region: Region, offset: int, nbytes: int, count: int) -> None:
        self.region, self.nbytes, self.count = region, nbytes, count
        self._free = [region.address + offset + nth * nbytes for nth in range(count)]
        self._change = threading.Condition()

    @contextmanager
    def lend(self, count: int) -> Iterator[Addresses]:
        """Addresses of `count` slots."""
        with self._change:
            if not self._change.wait_for(lambda: len(self._free) >= count, LEND_S):
                raise TimeoutError(f"no room for {count} pages on their way: calls before have not returned")
            taken = [self._free.pop() for _ in range(count)]
        try:
            yield np.array(sorted(taken), np.int64)
        finally:
            with self._change:
                self._free += taken
                self._change.notify_all()


class Scratch:
    """Memory of ours: `seals` slots of a block, and `pages` slots of `page_bytes`."""

    def __init__(self, seals: int, pages: int, page_bytes: int, *, named: bool) -> None:
        page_bytes = -(-page_bytes // BLOCK) * BLOCK
        nbytes = max(BLOCK, seals * BLOCK + pages * page_bytes)
        self._file = SHM / f"stepwell-sglang-{os.getpid()}-{secrets.token_hex(4)}" if named else None
        self._map = _mapped(self._file, nbytes)
        memory = memoryview(self._map)
        address = int(np.frombuffer(memory, np.uint8).ctypes.data)
        self.region = Region(address, nbytes, memory, self._file.name if self._file else "")
        self.seals = Slots(self.region, 0, BLOCK, seals)
        self.pages = Slots(self.region, seals * BLOCK, page_bytes, pages)

    def unname(self) -> None:
        """Take the name away; the memory stays with those who have it."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _mapped(path: Path | None, nbytes: int) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, nbytes)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


def copy(to: int, source: int, nbytes: int) -> None:
    """Copy bytes; other threads run meanwhile."""
    ctypes.memmove(to, source, nbytes)
