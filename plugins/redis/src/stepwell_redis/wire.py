"""Pages over a connection of redis-py: commands packed for a batch at once, replies received into the pages.

Why not the client's own commands: they make a bytes object of each page that arrives, grow it by appending, and cost
5 to 20 us of Python a page. Connecting, logging in, TLS and the pool stay the client's. Measured against its best way
(MGET, pipelines; hiredis or not) over loopback with 64 pages a batch, this gets 1.5 to 3 times as much for pages from
64 KiB on.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence

from redis.connection import AbstractConnection

from stepwell import DONE, MISSING, Failed, PageResult

BUFFER = 128 * 1024
COPIED = 16 * 1024
"""Pages up to this size are moved through a buffer, many in one system call; larger ones straight."""
AHEAD = 16 * 1024
"""Most bytes of the next replies that are taken along with the end of a large page."""
PIECES = 512
"""Buffers in one system call."""
LONGEST_S = 30.0
"""One batch on a connection. Silence ends sooner; this ends a server that goes on and on, long after core gave up."""


class Garbled(OSError):
    """The server said what no reply to our commands looks like."""


class Link:
    """One connection while a batch has it. After an exception the connection must be closed."""

    def __init__(self, connection: AbstractConnection) -> None:
        sock: socket.socket | None = connection._sock  # the client has no other way to its socket
        if sock is None:
            raise ConnectionError("the connection is closed")
        self._sock = sock
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._at = 0
        self._end = 0
        self._until = time.monotonic() + LONGEST_S

    def send(self, pieces: Sequence[bytes | memoryview], each: int) -> None:
        """Send pieces, of which the large ones have `each` bytes."""
        if each <= COPIED:
            self._sock.sendall(b"".join(pieces))
        elif self._plain:
            for at in range(0, len(pieces), PIECES):
                self._gather(list(pieces[at : at + PIECES]))
        else:
            for piece in pieces:
                self._sock.sendall(piece)

    def statuses(self, count: int, results: list[PageResult]) -> None:
        """Append what `count` writes came to."""
        for _ in range(count):
            line = self._line()
            results.append(DONE if line == b"+OK" else _failed(line))

    def numbers(self, count: int) -> list[int]:
        """Replies that are numbers; one that is an error raises."""
        numbers = []
        for _ in range(count):
            line = self._line()
            if line[:1] != b":":
                raise Garbled(_failed(line).reason)
            numbers.append(_number(line))
        return numbers

    def array(self, count: int, results: list[PageResult]) -> bool:
        """Whether one reply for `count` pages follows; else what came instead is the result of each."""
        line = self._line()
        if line == b"*%d" % count:
            return True
        results += [_failed(line)] * count
        return False

    def pages(self, into: Sequence[memoryview], results: list[PageResult]) -> None:
        """Receive one value a buffer, and append what came of each."""
        size = len(into[0])
        head = b"$%d\r\n" % size
        skip, whole = len(head), len(head) + size + 2
        buffer, view = self._buffer, self._view
        for page in into:
            at = self._at
            if self._end - at >= whole and buffer.startswith(head, at):
                page[:] = view[at + skip : at + skip + size]
                self._at = at + whole
                results.append(DONE)
            else:
                results.append(self._page(page, size))

    # --- inside --------------------------------------------------------------------------------------------------

    def _page(self, page: memoryview, size: int) -> PageResult:
        line = self._line()
        if line == b"$%d" % size:
            self._fill(page)
            self._skip(2)
            return DONE
        if line == b"$-1":
            return MISSING
        if line[:1] == b"$":
            held = _number(line)
            self._skip(held + 2)
            return Failed(f"the server holds {held} bytes under this key, not {size}")
        return _failed(line)

    def _line(self) -> bytes:
        while (stop := self._buffer.find(b"\r\n", self._at, self._end)) < 0:
            self._more()
        line = bytes(self._view[self._at : stop])
        self._at = stop + 2
        return line

    def _fill(self, page: memoryview) -> None:
        size = len(page)
        if size <= COPIED:
            while self._end - self._at < size:
                self._more()
        have = min(size, self._end - self._at)
        page[:have] = self._view[self._at : self._at + have]
        self._at += have
        while have < size:
            self._check_time()
            if self._plain:
                got = self._sock.recvmsg_into([page[have:], self._view[:AHEAD]])[0]
            else:
                got = self._sock.recv_into(page[have:])
            have += _some(got)
            self._at, self._end = 0, max(0, have - size)

    def _skip(self, count: int) -> None:
        while self._end - self._at < count:
            count -= self._end - self._at
            self._at = self._end
            self._more()
        self._at += count

    def _more(self) -> None:
        """Receive what there is behind what is left in the buffer."""
        left = self._end - self._at
        if self._at:
            self._buffer[:left] = self._buffer[self._at : self._end]
            self._at, self._end = 0, left
        if left == BUFFER:
            raise Garbled("a line without an end")
        self._check_time()
        self._end += _some(self._sock.recv_into(self._view[left:]))

    def _gather(self, pieces: list[bytes | memoryview]) -> None:
        """One system call for many pieces, and more where the socket took a part."""
        while pieces:
            self._check_time()
            sent = self._sock.sendmsg(pieces)
            done = 0
            while done < len(pieces) and sent >= len(pieces[done]):
                sent -= len(pieces[done])
                done += 1
            del pieces[:done]
            if sent:
                pieces[0] = memoryview(pieces[0])[sent:]

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError(f"no end of a batch within {LONGEST_S:g} s")


def _number(line: bytes) -> int:
    if not line[1:].isdigit():
        raise Garbled(f"the server's reply is not understood: {line[:200]!r}")
    return int(line[1:])


def _some(count: int) -> int:
    if count == 0:
        raise ConnectionResetError("the server closed the connection")
    return count


def _failed(line: bytes) -> Failed:
    text = line[:200].decode(errors="replace")
    if not text.startswith("-"):
        raise Garbled(f"the server's reply is not understood: {text!r}")
    return Failed(text[1:])
