"""Threads that carry out the transfers of all batches, so that the disk sees as many at once as it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


class Lanes:
    """Runs tasks on `count` threads; a task that comes alone runs on its caller's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "stepwell-file")

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks and return when every one has ended; the first exception is raised then."""
        if len(tasks) == 1:
            tasks[0]()
            return
        failed: BaseException | None = None
        for future in [self._pool.submit(task) for task in tasks]:
            failed = failed or future.exception()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown()
