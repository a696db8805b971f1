"""The peer: a process that lends its memory to others, who write and read it without its doing anything.

It keeps the books (`book.py`) and answers questions about them. A lease lasts as long as its client's connection: no
time runs out on a client that is only slow, so no slot is given away under its hands. Where a connection ends, its
leases go on for a moment, for what may still be on its way.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import mmap
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from stepwell import StepwellError, StoredPage
from stepwell_nixl.book import Book, Slot, split
from stepwell_nixl.client import make_ucx_agent
from stepwell_nixl.wire import (
    FIRST_MOST,
    FULL,
    HEAD,
    HELD,
    MOST,
    VERSION,
    Allocate,
    Delete,
    Done,
    Find,
    Held,
    Hello,
    Lent,
    LetGo,
    List,
    Listed,
    Message,
    Pin,
    Publish,
    Refused,
    Request,
    Welcome,
    frame,
    requests,
)

GIB = 1 << 30
SLABS = 64
LEAST_SLAB = 4 << 20
KEY = 40
LISTED = 1024
MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later; Python has no name for it."""
GRACE_S = 2.0
"""How long the leases of a connection that ended go on."""
KEEPALIVE_S = 30
"""After how much silence a connection is tested, so that the leases of a machine that is gone end."""


@dataclass(slots=True, eq=False)
class Lease:
    """Slots that one client writes or reads."""

    slots: list[Slot | None]
    writing: bool


class Memory:
    """The memory that is lent, registered with NIXL."""

    def __init__(self, nbytes: int, devices: str) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # All of it now, in large pages: memory that is touched for the first time takes a multiple of the time.
        for advice in (mmap.MADV_HUGEPAGE, MADV_POPULATE_WRITE):
            with suppress(OSError):
                self._map.madvise(advice)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.agent = make_ucx_agent(devices, moves_for_others=True)
        self.agent.register_memory([(self.address, nbytes, 0, "")], "DRAM")
        self.metadata = self.agent.get_agent_metadata()


class Session:
    """What one client may ask, and what it holds."""

    def __init__(self, book: Book, memory: Memory, token: str) -> None:
        self._book, self._memory, self._token = book, memory, token
        self._leases: dict[int, Lease] = {}
        self._next = 0
        self._listing: list[StoredPage] = []
        self.known = False
        """Whether it said hello."""

    def answer(self, request: Request) -> Message | None:
        """The answer to a request; None where it has none."""
        if not self.known:
            return self._greet(request)
        match request:
            case Allocate(keys, size):
                now = time.monotonic()
                return self._lend([self._allocated(key, size, now) for key in split(keys, KEY)], writing=True)
            case Pin(keys, size):
                now = time.monotonic()
                return self._lend([self._pinned(key, size, now) for key in split(keys, KEY)], writing=False)
            case Publish(lease, which):
                self._end(lease, which)
                return Done()
            case LetGo(lease):
                self._end(lease, b"")
                return None
            case Find(keys):
                now = time.monotonic()
                return Held(bytes(self._book.find(key, now) is not None for key in split(keys, KEY)))
            case Delete(keys):
                for key in split(keys, KEY):
                    slot = self._book.find(key, time.monotonic())
                    if slot is not None:
                        self._book.remove(slot)
                return Done()
            case List(start):
                return self._listed(start)
            case Hello():
                return Refused("hello was said already")

    def end(self) -> None:
        """Let go of everything."""
        for lease in list(self._leases):
            self._end(lease, b"")

    def _greet(self, request: Request) -> Message:
        if not isinstance(request, Hello) or request.version != VERSION:
            return Refused(f"the peer speaks version {VERSION} of its protocol")
        if not hmac.compare_digest(request.token.encode(), self._token.encode()):
            return Refused("the peer was started with another token")
        self.known = True
        return Welcome(self._memory.metadata, self._memory.nbytes, self._book.slab_bytes)

    def _allocated(self, key: bytes, size: int, now: float) -> Slot | int:
        if self._book.find(key, now, size) is not None:
            return HELD
        return self._book.allocate(key, size) or FULL

    def _pinned(self, key: bytes, size: int, now: float) -> Slot | int:
        slot = self._book.find(key, now, size)
        if slot is None:
            return HELD
        self._book.pin(slot)
        return slot

    def _lend(self, slots: list[Slot | int], *, writing: bool) -> Lent:
        self._next += 1
        self._leases[self._next] = Lease([None if isinstance(slot, int) else slot for slot in slots], writing)
        base = self._memory.address
        addresses = [slot if isinstance(slot, int) else base + slot.offset for slot in slots]
        return Lent(self._next, np.array(addresses, dtype=np.int64).tobytes())

    def _end(self, number: int, which: bytes) -> None:
        lease = self._leases.pop(number, None)
        if lease is None:
            return
        written, now = which.ljust(len(lease.slots), b"\0"), time.monotonic()
        for slot, good in zip(lease.slots, written, strict=False):
            if slot is None:
                continue
            if not lease.writing:
                self._book.unpin(slot)
            elif good:
                self._book.publish(slot, now)
            else:
                self._book.abandon(slot)

    def _listed(self, start: int) -> Listed:
        if start == 0:
            self._listing = list(self._book.pages())
        some = self._listing[start : start + LISTED]
        sizes = np.array([page.nbytes for page in some], dtype=np.int64)
        return Listed(b"".join(page.key for page in some), sizes.tobytes())


class Connection(asyncio.Protocol):
    """One client's. Each question is answered where it arrives: a batch waits for it, so it starts no task."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while (body := self._next()) is not None:
                reply = self._session.answer(requests.decode(body))
                if reply is not None:
                    self._transport.write(frame(reply))
        except ValueError:  # it does not speak our language
            self._transport.abort()

    def pause_writing(self) -> None:
        """It asks and does not listen: it is heard when it has caught up."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().call_later(GRACE_S, self._session.end)

    def _next(self) -> bytes | None:
        """The next whole message."""
        if len(self._received) < HEAD.size:
            return None
        (length,) = HEAD.unpack_from(self._received)
        if length > (MOST if self._session.known else FIRST_MOST):
            raise ValueError(f"a message of {length} bytes")
        end = HEAD.size + length
        if len(self._received) < end:
            return None
        body = bytes(memoryview(self._received)[HEAD.size : end])
        del self._received[:end]
        return body


async def run(host: str, port: int, nbytes: int, *, token: str, devices: str, ttl_s: float) -> None:
    """Lend memory until a signal ends it."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))  # and listens when the memory is there
    except OSError as error:
        raise StepwellError(f"--listen {host}:{port}: {error.strerror}; choose another address") from None
    memory = Memory(nbytes, devices)
    book = Book(nbytes, max(LEAST_SLAB, nbytes // SLABS), ttl_s)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop.set)
    server = await loop.create_server(lambda: Connection(Session(book, memory, token)), sock=listener)
    print(f"lends {nbytes / GIB:g} GiB at {host}:{listener.getsockname()[1]}", flush=True)
    await stop.wait()
    server.close()


def _keep_alive(line: socket.socket) -> None:
    with suppress(OSError):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
