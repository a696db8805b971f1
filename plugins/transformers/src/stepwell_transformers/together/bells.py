"""How a group that has something to compute calls the others: a datagram each, with the number of the round."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepwell import PeerLost

NUMBER = struct.Struct("<Q")
LAST = NUMBER.pack(2**64 - 1)
RETRY_S = 0.01


class Bells:
    """One socket a group, in a folder that is theirs alone. Calls come in on a thread of its own."""

    def __init__(self, folder: Path, group: int, groups: int, patience_s: float) -> None:
        """Bind the own socket; the others' must be there before the first `ring`."""
        self._paths = [folder / f"bell-{other}" for other in range(groups)]
        self._group, self._patience_s = group, patience_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._paths[group]))
        self._caller = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._caller.setblocking(False)
        self._thread: threading.Thread | None = None

    def listen(self, knock: Callable[[int], None]) -> None:
        """Tell of every call from here on: `knock(round)`, on a thread of its own. Once."""
        self._thread = threading.Thread(target=self._hear, args=(knock,), name="stepwell.bell", daemon=True)
        self._thread.start()

    def ring(self, number: int) -> None:
        """Call all others into a round. PeerLost where one is gone."""
        for other, path in enumerate(self._paths):
            if other != self._group:
                self._call(path, other, NUMBER.pack(number))

    def close(self) -> None:
        """Hear no more. Idempotent."""
        if self._thread is not None:
            with suppress(OSError):
                self._caller.setblocking(True)
                self._caller.settimeout(self._patience_s)
                self._caller.sendto(LAST, str(self._paths[self._group]))
            self._thread.join(self._patience_s)
            self._thread = None
        self._socket.close()
        self._caller.close()
        self._paths[self._group].unlink(missing_ok=True)

    def _call(self, path: Path, other: int, message: bytes) -> None:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                self._caller.sendto(message, str(path))
                return
            except BlockingIOError:  # it has many calls that it did not hear yet
                if time.monotonic() > until:
                    raise PeerLost(f"group {other} has not heard a call for {self._patience_s:g} s") from None
                time.sleep(RETRY_S)
            except OSError as error:
                raise PeerLost(f"group {other} is gone ({error.strerror})") from None

    def _hear(self, knock: Callable[[int], None]) -> None:
        while (message := self._socket.recv(NUMBER.size)) != LAST:
            knock(NUMBER.unpack(message)[0])
