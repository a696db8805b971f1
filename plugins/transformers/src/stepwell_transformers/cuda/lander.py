"""A thread that waits for marks in order, and does what is due behind each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from stepwell_transformers.cuda.lanes import Mark

Land = Callable[[RuntimeError | None], None]
"""Told of the fault in the work before the mark, where there was one."""


class Lander:
    """One lane's."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._due: queue.SimpleQueue[tuple[Mark, Land] | None] = queue.SimpleQueue()
        self._wake = wake
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, mark: Mark, land: Land) -> None:
        """Do `land` when the work before a mark has ended, then say that there are news."""
        self._due.put((mark, land))

    def close(self, timeout: float) -> bool:
        """End once what was put has landed; whether that was in time."""
        self._due.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            mark, land = due
            try:
                mark.synchronize()
            except RuntimeError as error:
                land(error)
            else:
                land(None)
            self._wake()
