"""Whether the master is there, so that nobody waits for one that is not.

With its master gone, the client answers the calls under way at once and then blocks each for 4.3 s, and with a frozen
one until the RPC times out. So a connection of our own is held to it, on which nothing is ever said: a look at it costs
a microsecond and tells when the other end has closed. Core's breaker comes after that and cannot do it: it counts calls
that have failed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

PAUSE_S = 0.5
"""How long one that was gone is not asked again."""
SILENT_S = 1.0
"""The same for one that took a call and did not answer, of which a connection tells nothing."""
CONNECT_S = 0.25


class Master:
    """Shared by all threads."""

    def __init__(self, address: tuple[str, int], clock: Callable[[], float]) -> None:
        self._address, self._clock = address, clock
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._gone_until = float("-inf")

    @property
    def here(self) -> bool:
        """Whether it seems to be there."""
        line = self._line
        if line is not None and _open(line):
            return True
        with self._lock:  # one thread asks for all
            if self._line is line:
                self._connect()
            return self._line is not None

    def lost(self) -> None:
        """A call did not reach it."""
        with self._lock:
            self._drop()

    def silent(self) -> None:
        """It took a call and did not answer."""
        with self._lock:
            self._drop()
            self._gone_until = self._clock() + SILENT_S

    close = lost

    def _connect(self) -> None:
        self._drop()
        if self._clock() < self._gone_until:
            return
        try:
            line = socket.create_connection(self._address, CONNECT_S)
        except OSError:
            self._gone_until = self._clock() + PAUSE_S
            return
        line.setblocking(False)
        self._line = line

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with suppress(OSError):
                line.close()


def refusal(address: tuple[str, int], timeout_s: float) -> str | None:
    """Why nobody answers there; None if somebody does."""
    try:
        socket.create_connection(address, timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _open(line: socket.socket) -> bool:
    """Whether the other end has it still."""
    try:
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
