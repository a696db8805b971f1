"""Many at once, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turnstile:
    """Lets calls through together; one that must be alone waits for them, and they for it."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._taken = False

    @contextmanager
    def among(self) -> Iterator[None]:
        """Be inside beside others."""
        with self._change:
            self._change.wait_for(lambda: not self._taken)
            self._inside += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= 1
                self._change.notify_all()

    @contextmanager
    def alone(self, wait_s: float = 1.0) -> Iterator[bool]:
        """Be the only one inside; False where others did not leave in time, or another one is alone already."""
        with self._change:
            mine = not self._taken
            self._taken = True
            alone = mine and self._change.wait_for(lambda: not self._inside, wait_s)
        try:
            yield alone
        finally:
            if mine:
                with self._change:
                    self._taken = False
                    self._change.notify_all()
