"""One thread that does one thing at a time beside the steps, and what became of the last."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """Asked on the thread that computes."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
        self.busy = False
        """Whether something was begun whose result was not taken."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], T]) -> None:
        """Do it, once nothing else is under way."""
        assert not self.busy
        self.busy = True
        self._work.put(work)

    def result(self) -> T | None:
        """What came of it, once; None while it goes on. Raises what it raised."""
        if not self.busy or self._results.empty():
            return None
        found = self._results.get()
        self.busy = False
        if isinstance(found, Exception):
            raise found
        return found

    def close(self, wait_s: float) -> None:
        """Begin nothing more; what is under way has so long to end."""
        self._work.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._results.put(work())
            except Exception as error:
                self._results.put(error)
