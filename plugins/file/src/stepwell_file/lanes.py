"""Threads that carry out the transfers of all batches, so that the disk sees as many at once as it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue


class _Batch:
    """Tasks that are waited for together."""

    def __init__(self, tasks: int) -> None:
        self.over = threading.Event()
        self.failed: BaseException | None = None
        self._left = tasks
        self._lock = threading.Lock()

    def run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self.failed = self.failed or error
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.over.set()


class Lanes:
    """Runs tasks on `count` threads; a task that comes alone runs on its caller's.

    They are daemons: a process may end though a disk does not answer.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._queue: SimpleQueue[tuple[_Batch, Callable[[], None]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        for _ in range(count):
            threading.Thread(target=self._serve, name="stepwell-file", daemon=True).start()

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and return when every one has ended; the first exception is raised then."""
        if len(tasks) == 1:
            tasks[0]()
        elif tasks:
            batch = _Batch(len(tasks))
            if not self._queued(batch, tasks):
                for task in tasks:
                    batch.run(task)
            batch.over.wait()
            if batch.failed is not None:
                raise batch.failed

    def close(self) -> None:
        """Let the threads end when what is queued is done; a call still under way does the rest by itself."""
        with self._lock:
            self._closed = True
            for _ in range(self.count):
                self._queue.put(None)

    def _queued(self, batch: _Batch, tasks: Sequence[Callable[[], None]]) -> bool:
        """Leave tasks to the threads; False where these end."""
        with self._lock:
            if not self._closed:
                for task in tasks:
                    self._queue.put((batch, task))
            return not self._closed

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            batch, task = job
            batch.run(task)
            del job, batch, task  # a waiting thread must not keep a segment alive
