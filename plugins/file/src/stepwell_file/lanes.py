"""Threads that carry out the transfers of a batch side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


class Lanes:
    """Runs tasks at once, the caller's own thread among them, so that a busy pool never makes a batch wait."""

    def __init__(self, threads: int) -> None:
        self.count = threads
        self._pool = ThreadPoolExecutor(threads - 1, "stepwell-file") if threads > 1 else None

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and return when every one has ended; the first exception is raised then."""
        if self._pool is None or len(tasks) < 2:
            for task in tasks:
                task()
            return
        futures = [self._pool.submit(task) for task in tasks[1:]]
        failed: BaseException | None = None
        try:
            tasks[0]()
        except BaseException as error:
            failed = error
        for task, future in zip(reversed(tasks[1:]), reversed(futures), strict=True):
            try:
                if future.cancel():
                    task()
                else:
                    future.result()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown()
