"""Whether the master is there, so that nobody waits for one that is not.

With its master gone, the client answers one call at once and then blocks each for 4.3 s, and with a frozen one until
the RPC times out. So a call that follows a silence asks first whether somebody listens, which costs 0.1 ms on
loopback; one thread asks for all. Core's breaker comes after that and cannot do it: it counts calls that have failed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

FRESH_S = 0.5
"""How long an answer of the master stands for its being there."""
PAUSE_S = 0.5
"""How long it is not asked again once it was not."""
CONNECT_S = 0.25


class Master:
    """Shared by all threads."""

    def __init__(self, address: tuple[str, int], clock: Callable[[], float]) -> None:
        self._address, self._clock = address, clock
        self._lock = threading.Lock()
        self._here_until = self._gone_until = float("-inf")

    @property
    def here(self) -> bool:
        """Whether it seems to be there."""
        if self._clock() < self._here_until:
            return True
        with self._lock:
            now = self._clock()
            if now < self._here_until or now < self._gone_until:
                return now < self._here_until
            why = refusal(self._address, CONNECT_S)
            now = self._clock()
            self._here_until = now + FRESH_S if why is None else float("-inf")
            self._gone_until = float("-inf") if why is None else now + PAUSE_S
            return why is None

    def spoke(self) -> None:
        """It answered a call."""
        self._here_until = self._clock() + FRESH_S

    def lost(self) -> None:
        """A call did not reach it."""
        with self._lock:
            self._here_until = float("-inf")

    def silent(self) -> None:
        """It took a call and did not answer. Whether it listens says nothing then."""
        with self._lock:
            self._here_until, self._gone_until = float("-inf"), self._clock() + PAUSE_S


def refusal(address: tuple[str, int], timeout_s: float) -> str | None:
    """Why nobody answers there; None if somebody does."""
    try:
        socket.create_connection(address, timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
