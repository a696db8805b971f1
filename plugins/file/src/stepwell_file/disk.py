"""Moving pages between memory and a file: every byte is accounted for, and each page has its own outcome."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

Move = Callable[[int, Sequence[memoryview], int], int]


class Disk:
    """The system calls that the store makes on data; a test puts a faulty one in its place."""

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers from `offset`; the number of bytes that came."""
        return os.preadv(fd, buffers, offset)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write buffers at `offset`; the number of bytes that went."""
        return os.pwritev(fd, buffers, offset)

    def append(self, fd: int, data: bytes) -> int:
        """Append to an index; the number of bytes that went."""
        return os.write(fd, data)

    def allocate(self, fd: int, nbytes: int) -> None:
        """Reserve the blocks of a file's first `nbytes`, so that writing them cannot run out of space."""
        os.posix_fallocate(fd, 0, nbytes)

    def sync(self, fd: int) -> None:
        """Bring a file's data to the device."""
        os.fdatasync(fd)


class Short(OSError):
    """The file ended, or took no more, before the page did."""

    def __init__(self, moved: int, size: int) -> None:
        super().__init__(errno.EIO, f"only {moved} of {size} bytes were moved")


def transfer(move: Move, fds: Sequence[int], buffers: Sequence[memoryview], offset: int) -> list[OSError | None]:
    """Move equal buffers to or from one place in a file; what went wrong with each, None where it is whole.

    `fds` are tried in order where the kernel refuses an alignment (EINVAL): direct first, then through the cache.
    After an error the pages that are left are moved one by one: a bad one does not take its neighbours along.
    """
    size = len(buffers[0])
    whole, error = _move(move, fds, buffers, offset)
    outcome: list[OSError | None] = [None] * whole
    if error is None:
        return outcome
    if len(buffers) == 1:
        return [error]
    for at in range(whole, len(buffers)):
        outcome += transfer(move, fds, buffers[at : at + 1], offset + at * size)
    return outcome


def _move(move: Move, fds: Sequence[int], buffers: Sequence[memoryview], offset: int) -> tuple[int, OSError | None]:
    """How many of the buffers were moved whole, and the error that ended it."""
    size = len(buffers[0])
    total = size * len(buffers)
    done = 0
    while done < total:
        try:
            moved = move(fds[0], _rest(buffers, size, done), offset + done)
        except OSError as error:
            if error.errno == errno.EINVAL and len(fds) > 1:
                fds = fds[1:]
                continue
            return done // size, error
        if moved <= 0:
            return done // size, Short(done % size, size)
        done += moved
    return len(buffers), None


def _rest(buffers: Sequence[memoryview], size: int, done: int) -> Sequence[memoryview]:
    if not done:
        return buffers
    first, inside = divmod(done, size)
    return [buffers[first][inside:], *buffers[first + 1 :]]
