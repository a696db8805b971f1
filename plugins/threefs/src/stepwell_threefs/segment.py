"""A segment: a file of pages, and a file of records that say which.

One process writes it, from its beginning to its end; others read it. 3FS has no lock that holds between nodes, and
this needs none.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable

from stepwell_threefs.folder import Folder, number_of
from stepwell_threefs.record import RECORD_BYTES, SEALED, Kind, Record, unpack

BLOCK = 4096
READ_BYTES = 1 << 18


class Handle:
    """An open file, closed with the last reference to this: never under the hands of a transfer in another thread."""

    __slots__ = ("_before", "_lock", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._lock = threading.Lock()
        self._before: Callable[[int], object] | None = None

    def enrol(self, before_use: Callable[[int], object], before_close: Callable[[int], object]) -> int:
        """The descriptor, after `before_use` had it once."""
        with self._lock:
            if self._before is None:
                before_use(self.fd)
                self._before = before_close
        return self.fd

    def __del__(self) -> None:
        if self._before is not None:
            self._before(self.fd)
        os.close(self.fd)


class Segment:
    """One of them, as this process sees it."""

    def __init__(self, folder: Folder, stem: str) -> None:
        self.stem, self.number = stem, number_of(stem)
        self._data = folder.path / f"{stem}.data"
        self._index = folder.path / f"{stem}.index"
        self._direct = folder.direct and folder.remote
        self._remote = folder.remote
        self._lock = threading.Lock()
        self._handles: dict[int, Handle] = {}
        self._read_to = 0
        self.sealed = False
        self.keys: list[bytes] = []
        self.buried: set[int] = set()
        """Offsets of pages that were deleted."""
        self.live = 0
        self.used = 0

    def open(self, flags: int) -> Handle:
        """The file of pages, opened once for each kind of use: O_RDONLY or O_RDWR, with O_DIRECT or without."""
        with self._lock:
            if flags not in self._handles:
                self._handles[flags] = Handle(os.open(self._data, flags | os.O_CLOEXEC))
            return self._handles[flags]

    def news(self) -> list[Record]:
        """Records since the last time. Past the page cache, which on 3FS may not know how long the file has become."""
        records: list[Record] = []
        try:
            fd = os.open(self._index, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self._direct else 0))
        except FileNotFoundError:
            return records
        try:
            with mmap.mmap(-1, READ_BYTES) as buffer, memoryview(buffer) as view:
                while not self.sealed and self._take(fd, view, records):
                    pass
        finally:
            os.close(fd)
        return records

    def _take(self, fd: int, view: memoryview, records: list[Record]) -> bool:
        """Read on; whether there may be more."""
        start = self._read_to // BLOCK * BLOCK
        got = os.preadv(fd, [view], start)
        before = self._read_to
        while self._read_to - start + RECORD_BYTES <= got and not self.sealed:
            record = unpack(view, self._read_to - start)
            if record is None:
                return False
            records.append(record)
            self._read_to += RECORD_BYTES
            self.sealed = record.kind is Kind.SEALED
        return self._read_to > before and got == READ_BYTES

    def reaches(self, end: int) -> bool:
        """Whether the file of pages is there and has so many bytes."""
        try:
            return self._data.stat().st_size >= end
        except FileNotFoundError:
            return False

    def settle(self) -> None:
        """Pages that went through the page cache reach the others, where that needs saying."""
        if self._remote:
            os.fsync(self.open(os.O_RDWR).fd)

    def close(self) -> None:
        """Close the file, or let who uses it now close it. Another use opens it again."""
        with self._lock:
            self._handles.clear()


class Tail(Segment):
    """The segment that this process writes."""

    def __init__(self, folder: Folder, stem: str, nbytes: int) -> None:
        super().__init__(folder, stem)
        self._nbytes = nbytes
        self._next = 0
        self.under_way = 0
        """Batches that have room here and have not said what became of it."""
        self.full = False
        try:
            fd = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                # Its final length from the beginning: on 3FS the length of a file that grows is known late to others.
                os.ftruncate(fd, nbytes)
            finally:
                os.close(fd)
            self._log = Handle(os.open(self._index, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        except OSError:
            folder.remove(stem)
            raise

    def take(self, size: int, most: int) -> tuple[int, int]:
        """Room for up to `most` pages next to each other: where it is, and how many fit."""
        if size > BLOCK:
            self._next = -(-self._next // BLOCK) * BLOCK
        at = self._next
        fits = min(most, (self._nbytes - at) // size)
        self._next += fits * size
        return at, fits

    def append(self, data: bytes) -> None:
        """Make records known to all. The caller appends one batch at a time."""
        if os.write(self._log.fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._remote:
            os.fsync(self._log.fd)

    def seal_if_done(self) -> None:
        """Seal a full segment once nothing is under way."""
        if self.full and self.under_way == 0 and not self.sealed:
            self.seal()

    def seal(self) -> None:
        """Say that nothing follows, and give back what was not used."""
        try:
            if self.used < self._nbytes:
                os.truncate(self._data, self.used)
            self.append(SEALED.pack())
        except OSError:
            pass  # it is read once more by others, and takes more room than it must: no harm to any page
        self.sealed = True
