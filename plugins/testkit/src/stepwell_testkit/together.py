"""Run the same work on several threads at once, within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def at_once(work: Callable[[int], R], threads: int, limit_s: float = 60.0) -> list[R]:
    """What `work(0) .. work(threads - 1)` return, all started together. The first error is raised here.

    A thread that does not come back in time fails the caller and is left behind: it is a daemon.
    """
    start = threading.Barrier(threads)
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        start.wait()
        try:
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(i,), daemon=True, name=f"kit-{i}") for i in range(threads)]
    for thread in running:
        thread.start()
    end = time.monotonic() + limit_s
    # An error on one thread leaves the others waiting for it: report it at once rather than the time-out it causes.
    while any(thread.is_alive() for thread in running) and not errors and time.monotonic() < end:
        next((thread for thread in running if thread.is_alive()), running[0]).join(0.01)  # the last may just have ended
    if errors:
        raise errors[0]
    late = [i for i, thread in enumerate(running) if thread.is_alive() or i not in results]
    assert not late, f"{late} of {threads} threads did not come back within {limit_s:g} s"
    return [results[i] for i in range(threads)]
