"""The journal of a folder: which page lies where, as records that are appended and never changed.

Every process follows it from where it was and reads only what is new. A record of 64 bytes carries a checksum of its
own, so a writer may be killed, or the disk be full, at any byte: the next one to append fills up what is torn, and
readers skip it. Where most records are out of date a new journal takes its place by rename.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell import ConfigError

KEY = 40
RECORD = np.dtype(
    [("key", "u1", KEY), ("segment", "<u4"), ("slot", "<u4"), ("stamp", "<u4"), ("kind", "<u4"), ("check", "<u8")]
)
Records = npt.NDArray[np.void]

NAME = "stepwell-nixl.journal"
LOCK = "stepwell-nixl.lock"
PATIENCE_S = 5.0
"""How long a change waits for those of other processes, which take milliseconds."""
_MARK = b"stepwell nixl folder, format 1"
_FACTORS = np.array(
    [
        0x9E3779B97F4A7C15,
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xD6E8FEB86659FD93,
        0xA0761D6478BD642F,
        0xE7037ED1A0B428DB,
        0x8EBC6AF09C88C6E3,
    ],
    dtype=np.uint64,
)
_SALT = np.uint64(0x53746570776C6C31)


class Kind(IntEnum):
    """What a record says."""

    MARK = 1
    """The first: this is a journal of ours."""
    OPENED = 2
    """A segment begins: `slot` is the size of its pages, `stamp` how many fit."""
    PAGE = 3
    """`key` lies in `slot` of `segment` since `stamp`, seconds since the epoch."""
    GONE = 4
    """`key` does not lie there any more."""
    DROPPED = 5
    """The segment has left, with all its pages."""


def records(kind: Kind, segment: int, slots: npt.ArrayLike, stamp: int, keys: Sequence[bytes] = ()) -> Records:
    """Records of one kind in one segment, checksums included."""
    slots = np.atleast_1d(np.asarray(slots, dtype=np.uint32))
    made = np.zeros(len(slots), dtype=RECORD)
    if keys:
        made["key"] = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY)
    made["segment"], made["slot"], made["stamp"], made["kind"] = segment, slots, stamp, kind
    made["check"] = _check(made)
    return made


class Journal:
    """One folder's journal as this process reads and writes it. The caller serialises all but `changing`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._fd = -1
        self._read = 0
        self._lock_fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._mine = threading.Lock()
        with self.changing():
            self._create()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Alone among all threads and processes. OSError where another does not let go in time."""
        with self._mine:
            _lock(self._lock_fd, time.monotonic() + PATIENCE_S)
            try:
                yield
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def news(self) -> tuple[bool, Records | None]:
        """(whether it begins anew and all that was known is void, the records since the last time)."""
        there = self._path.stat()
        anew = self._fd < 0 or there.st_ino != os.fstat(self._fd).st_ino
        if anew:
            self._reopen()
        elif there.st_size - self._read < RECORD.itemsize:
            return False, None
        data = _read_from(self._fd, self._read)
        whole = len(data) // RECORD.itemsize * RECORD.itemsize
        self._read += whole
        return anew, _sound(data[:whole])

    def append(self, what: Records) -> None:
        """Append records: all of them or, on OSError, a leading part. Only under `changing`, and with the news read."""
        end = os.fstat(self._fd).st_size
        torn = -end % RECORD.itemsize
        data = memoryview(b"\0" * torn + what.tobytes())
        while data:
            data = data[os.pwrite(self._fd, data, end) :]
            end = os.fstat(self._fd).st_size

    def replace(self, what: Records) -> None:
        """Begin a new journal with these records. Only under `changing`."""
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(_mark().tobytes() + what.tobytes())
        fresh.rename(self._path)

    @property
    def length(self) -> int:
        """Records in it."""
        return self._read // RECORD.itemsize

    def close(self) -> None:
        """Let go of the files."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

    def _create(self) -> None:
        if not self._path.exists() or self._path.stat().st_size == 0:
            self.replace(np.zeros(0, dtype=RECORD))
        head = self._path.read_bytes()[: RECORD.itemsize]
        if head != _mark().tobytes():
            raise ConfigError(
                f"storage.path = {str(self._path.parent)!r} holds a journal of another format: name another folder or "
                f"empty this one"
            )

    def _reopen(self) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._read = fd, 0


def _mark() -> Records:
    return records(Kind.MARK, 0, 0, 0, [_MARK.ljust(KEY)])


def _check(some: Records) -> npt.NDArray[np.uint64]:
    words = some.view("<u8").reshape(len(some), -1)[:, : len(_FACTORS)]
    mixed = words * _FACTORS
    return np.asarray((mixed ^ (mixed >> np.uint64(29))).sum(axis=1, dtype=np.uint64) ^ _SALT)


def _sound(data: bytes) -> Records:
    """The records in whose checksum is right."""
    some = np.frombuffer(data, dtype=RECORD)
    return np.asarray(some[some["check"] == _check(some)]) if len(some) else some


def _read_from(fd: int, at: int) -> bytes:
    parts = []
    while part := os.pread(fd, 1 << 24, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _lock(fd: int, until: float) -> None:
    """A process that was stopped while it held the lock must cost this one writes, not its threads."""
    pause = 0.0005
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise OSError(errno.EAGAIN, f"another process has held the folder for {PATIENCE_S:g} s") from None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
