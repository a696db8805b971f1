"""A segment: a data file that holds pages of one size in numbered slots, written once, from the first to the last."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

BLOCK = 4096
_NAME = re.compile(r"pages-([0-9a-f]{8})\.nixl")


def path_of(folder: Path, number: int) -> Path:
    """Where a segment's data lies."""
    return folder / f"pages-{number:08x}.nixl"


def number_of(name: str) -> int | None:
    """The number of a segment, by its file's name; None for a stranger's file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


class Segment:
    """One segment as this process knows it. Its descriptors close when the last user lets go of it."""

    def __init__(self, folder: Path, number: int, page_bytes: int, slots: int) -> None:
        self.path = path_of(folder, number)
        self.number = number
        self.page_bytes = page_bytes
        self.slots = slots
        self.used = 0
        """The first slot that no record names, nor any behind it."""
        self.live = 0
        """Pages that are found here."""
        self.keys: list[bytes] = []
        """Keys that were ever recorded here."""
        self.stamps = np.zeros(slots, dtype=np.uint32)
        """When each page came, in seconds since the epoch."""
        self.gone = False
        """Whether it has left the folder."""
        self._fds: dict[bool, int] = {}
        self._opening = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size of the data file."""
        return self.page_bytes * self.slots

    def fd(self, direct: bool) -> int:
        """A descriptor of the data; raises OSError, FileNotFoundError where it has left."""
        with self._opening:
            if direct not in self._fds:
                self._fds[direct] = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
            return self._fds[direct]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in self._fds.values():  # `close` is bound, since at the interpreter's end the module may be gone
            close(fd)


class Tail:
    """The free slots of a segment that this process alone may write to, for as long as the object lives.

    The lock is the kernel's (flock) and goes with the process, so a killed writer leaves nothing to clean up. Whoever
    writes holds the tail until the write is recorded: only then can the segment leave.
    """

    def __init__(self, segment: Segment, lock: int) -> None:
        self.segment = segment
        self._lock = lock
        self._next = segment.used

    def take(self, count: int) -> tuple[int, int]:
        """Up to `count` slots in a row: (the first, how many); the caller serialises."""
        first = self._next
        taken = min(count, self.segment.slots - first)
        self._next += taken
        return first, taken

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._lock)


def claim(path: Path) -> int | None:
    """A descriptor that holds a data file's lock, None where a writer holds it or the file is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd
