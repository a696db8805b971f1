"""A segment: a data file that holds pages one after another, and the index file that says which.

Both are named by us alone, after a number that grows. A data file without an index is a spare: its blocks are
reserved and may be taken for a new segment.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stepwell_file.disk import Disk
from stepwell_file.record import SEALED, VERSION, Record

BLOCK = 4096
HEADER = BLOCK
_HEAD = struct.Struct("<16sI")
_MAGIC = b"stepwell pages\r\n"
_NAME = re.compile(r"pages-([0-9a-f]{16})\.(data|index)")


def named(name: str) -> tuple[int, str] | None:
    """Number and kind of a file of ours, by its name."""
    match = _NAME.fullmatch(name)
    return (int(match[1], 16), match[2]) if match else None


class Segment:
    """One segment as this process knows it. Its descriptors close when the last user lets go of it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.data = folder / f"pages-{number:016x}.data"
        self.index = folder / f"pages-{number:016x}.index"
        self.followed = 0
        """Bytes of the index that have been read."""
        self.used = HEADER
        """Bytes of the data that its records reach to."""
        self.keys: list[bytes] = []
        """Keys that were ever recorded here."""
        self.live = 0
        """Pages that are found here."""
        self.sealed = False
        """Whether it takes no more pages."""
        self.hot: set[bytes] = set()
        """Keys that this process read here, or was about to write again."""
        self._fds: dict[bool, int] = {}
        self._opening = threading.Lock()

    def fds(self, direct: bool) -> list[int]:
        """Descriptors of the data to try in order; raises OSError, FileNotFoundError where it was evicted."""
        return [self._fd(True), self._fd(False)] if direct else [self._fd(False)]

    def _fd(self, direct: bool) -> int:
        with self._opening:
            if direct not in self._fds:
                self._fds[direct] = os.open(self.data, os.O_RDWR | (os.O_DIRECT if direct else 0))
            return self._fds[direct]

    @property
    def there(self) -> bool:
        """Whether nobody has evicted it."""
        return self.index.exists()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in self._fds.values():  # `close` is bound, since at the interpreter's end the module may be gone
            close(fd)


class Tail:
    """The end of a segment that this process alone may write to, for as long as the object lives.

    The lock is the kernel's (flock) and goes with the process, so a killed writer leaves nothing to clean up.
    """

    def __init__(self, segment: Segment, lock: int, end: int, disk: Disk) -> None:
        self.segment = segment
        self.end = end
        self.full = False
        """Whether a page did not fit: the segment is sealed when the last write to it is over."""
        self._at = segment.used
        self._lock = lock
        self._disk = disk
        self._appending = threading.Lock()

    def take(self, size: int, count: int) -> tuple[int, int]:
        """Space for up to `count` pages of `size` bytes in a row: (offset, how many); the caller serialises."""
        start = -(-self._at // BLOCK) * BLOCK if size % BLOCK == 0 else self._at
        fits = min(count, max(0, self.end - start) // size)
        if fits:
            self._at = start + fits * size
        self.full = self.full or fits < count
        return start, fits

    def publish(self, records: bytes, durable: bool) -> None:
        """Make pages visible, whose bytes are in place. OSError: none or some of them are."""
        if durable:
            self._disk.sync(self.segment.fds(False)[0])
        with self._appending:
            append(self._disk, self._lock, records)
        if durable:
            self._disk.sync(self._lock)

    def trim(self) -> None:
        """Give back what was reserved and not used; the last use of the tail."""
        with suppress(OSError):
            os.truncate(self.segment.data, self._at)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Here, since only the last one who lets go knows that nothing is under way.
        if self.full:
            with suppress(OSError):
                append(self._disk, self._lock, SEALED.pack())
        close(self._lock)


def append(disk: Disk, fd: int, data: bytes) -> None:
    """Append all of `data` or raise; what a failure leaves behind is skipped by readers."""
    while data:
        moved = disk.append(fd, data)
        if moved <= 0:
            raise OSError(28, "nothing was written")
        data = data[moved:]


def append_gone(disk: Disk, segment: Segment, records: Sequence[Record]) -> None:
    """Record that pages are gone, whoever writes the segment. One append each is whole among those of others."""
    try:
        fd = os.open(segment.index, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:  # evicted, and they with it
        return
    try:
        append(disk, fd, b"".join(record.pack() for record in records))
    finally:
        os.close(fd)


def claim(index: Path) -> int | None:
    """A descriptor that holds the segment's lock, None where a writer or an evictor holds it or it is gone."""
    try:
        fd = os.open(index, os.O_RDWR | os.O_APPEND)
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


def write_header(fd: int, number: int) -> None:
    """Mark a data file as ours."""
    header = _HEAD.pack(_MAGIC, VERSION) + struct.pack("<Q", number)
    os.pwrite(fd, header.ljust(HEADER, b"\0"), 0)


def ours(data: Path) -> bool:
    """Whether a data file carries our mark; what does not is never read, changed or removed."""
    try:
        with data.open("rb") as file:
            head = file.read(_HEAD.size)
    except OSError:
        return False
    return len(head) == _HEAD.size and _HEAD.unpack(head) == (_MAGIC, VERSION)
