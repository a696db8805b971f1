"""An event loop on a thread of its own, for a client whose calls are coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of a coroutine, from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self, wait_s: float = 5.0) -> None:
        """Stop, and wait for the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            self._loop.close()
