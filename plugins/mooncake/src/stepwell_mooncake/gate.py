"""Calls under way, counted, so that closing waits for them and nothing is called afterwards.

A call into a client that was closed ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Open until it is closed, once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = threading.Event()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each call into the client; RuntimeError once it is closed."""
        with self._changed:
            if self._closed.is_set():
                raise RuntimeError("the storage is closed")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Sleep inside a call; whether it is worth going on."""
        return not self._closed.wait(seconds)

    def close(self, wait_s: float) -> bool | None:
        """Let nobody in any more and wait for who is inside; whether all left in time. None: it was closed already."""
        with self._changed:
            if self._closed.is_set():
                return None
            self._closed.set()
            return self._changed.wait_for(lambda: not self._inside, wait_s)
