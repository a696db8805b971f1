"""How the engine and a rank of another host know each other; the engine greets several at once, in bounded time.

Both prove that they know `ranks.secret`, each over a number that the other drew; neither sends it. Who is slow to do so
holds nobody up, and where too many knock at once the one that has taken longest is sent away.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.wire import Stream

NONCE = 32
GREETING = struct.Struct("<II32s32s")
"""Rank, pid, the rank's number, and its proof."""
GREET_S = 5.0
MOST_GUESTS = 64
"""Connections that have not proved anything yet."""


def proof(secret: str, who: str, *parts: bytes) -> bytes:
    """What only somebody who knows the secret can say."""
    return hmac.digest(secret.encode(), who.encode() + b"\0" + b"".join(parts), "sha256")


def exactly(end: socket.socket, count: int) -> bytes:
    """So many bytes. EOFError where the other end is gone first."""
    whole = b""
    while len(whole) < count:
        if not (more := end.recv(count - len(whole))):
            raise EOFError
        whole += more
    return whole


@dataclass(slots=True)
class _Guest:
    """Somebody who may be a rank."""

    end: socket.socket
    host: str
    until: float
    number: bytes
    """That we drew."""
    said: bytes = b""


class Greeter:
    """Greets whoever comes, on one thread that polls."""

    def __init__(self, secret: str, poll: select.poll) -> None:
        """`poll`: where connections are watched until they are ranks or sent away."""
        self._secret, self._poll = secret, poll
        self._guests: dict[int, _Guest] = {}
        """By descriptor, who came first in front."""
        self._log = logging.getLogger("stepwell.ranks")

    def admit(self, end: socket.socket, host: str, now: float) -> None:
        """Begin with one more."""
        if len(self._guests) >= MOST_GUESTS:
            self._send_away(next(iter(self._guests)))
        guest = self._guests[end.fileno()] = _Guest(end, host, now + GREET_S, secrets.token_bytes(NONCE))
        end.setblocking(False)
        self._poll.register(end, select.POLLIN)
        self._say(guest, guest.number)

    def heard(self, fd: int, now: float) -> Link | None:
        """Something came from one of them; the rank that it is, once it has proved that."""
        if (guest := self._guests.get(fd)) is None:
            return None
        try:
            more = guest.end.recv(GREETING.size - len(guest.said))
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        guest.said += more
        if more and len(guest.said) < GREETING.size:
            return None
        link = self._proven(guest, now) if more else None
        if link is None:
            self._send_away(fd)
        else:
            self._forget(fd)
        return link

    def send_late_away(self, now: float) -> None:
        """Those whose time is over."""
        for fd in [fd for fd, guest in self._guests.items() if now >= guest.until]:
            self._send_away(fd)

    def close(self) -> None:
        """Send all away."""
        for fd in list(self._guests):
            self._forget(fd).end.close()

    def _proven(self, guest: _Guest, now: float) -> Link | None:
        rank, pid, theirs, said = GREETING.unpack(guest.said)
        if not hmac.compare_digest(said, proof(self._secret, "rank", guest.number, guest.said[:-32])):
            return None
        self._say(guest, proof(self._secret, "engine", theirs))
        guest.end.setblocking(True)
        with suppress(OSError):  # it is gone, which its stream will tell
            guest.end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(rank, Stream(guest.end), None, f"pid {pid} at {guest.host}", now)

    def _say(self, guest: _Guest, some: bytes) -> None:
        with suppress(OSError):  # so little always fits; who is gone is heard to be
            guest.end.sendall(some)

    def _send_away(self, fd: int) -> None:
        guest = self._forget(fd)
        self._log.warning("something at %s did not prove to be a rank by ranks.secret; it was sent away", guest.host)
        guest.end.close()

    def _forget(self, fd: int) -> _Guest:
        self._poll.unregister(fd)
        return self._guests.pop(fd)


def know(end: socket.socket, rank: int, pid: int, secret: str) -> None:
    """On a rank: be greeted. EOFError where the other end is no engine that knows the secret, or OSError."""
    theirs = exactly(end, NONCE)
    mine = secrets.token_bytes(NONCE)
    head = GREETING.pack(rank, pid, mine, b"")[:-32]
    end.sendall(head + proof(secret, "rank", theirs, head))
    if not hmac.compare_digest(exactly(end, 32), proof(secret, "engine", mine)):
        raise EOFError
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
