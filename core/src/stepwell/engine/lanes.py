"""Threads for calls that may hang: the most urgent job first, and a stand-in for every thread that is stuck."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable


class Lanes:
    """Runs jobs on `threads` threads, not counting those that `stand_in` declared stuck."""

    def __init__(self, threads: int, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads, self._name, self._clock = threads, name, clock
        self._log = logging.getLogger(name)
        self._change = threading.Condition()
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._working = 0
        self._closed = False
        self._lanes: list[threading.Thread] = []
        for _ in range(threads):
            self._start()

    def queue(self, job: Callable[[], None], patience_s: float = 0.0) -> None:
        """Run a job as soon as a thread is free, as if it had come `patience_s` later. Dropped after `close`."""
        with self._change:
            if self._closed:
                return
            self._order += 1
            heapq.heappush(self._jobs, (self._clock() + patience_s, self._order, job))
            self._change.notify()

    def stand_in(self) -> None:
        """A thread is stuck: start another in its place."""
        with self._change:
            self._threads += 1
            self._start()

    def recovered(self) -> None:
        """A stuck thread is back: one leaves as soon as its job is done."""
        with self._change:
            self._threads -= 1
            self._change.notify_all()

    @property
    def busy(self) -> bool:
        """Whether anything is queued or running."""
        with self._change:
            return bool(self._jobs) or self._working > 0

    def settle(self, wait_s: float | None) -> bool:
        """Wait until nothing is queued or running; whether that came within `wait_s`."""
        with self._change:
            return self._change.wait_for(lambda: not self._jobs and not self._working, wait_s)

    def close(self, wait_s: float) -> None:
        """Drop what is queued, and wait for what runs; a thread that is stuck is left behind."""
        with self._change:
            self._closed = True
            self._jobs.clear()
            self._change.notify_all()
            lanes = list(self._lanes)
        deadline = time.monotonic() + wait_s
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        lane = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._lanes.append(lane)
        lane.start()

    def _run(self) -> None:
        while (job := self._take()) is not None:
            try:
                job()
            except Exception:
                self._log.exception("a job failed")
            finally:
                with self._change:
                    self._working -= 1
                    if not self._working and not self._jobs:
                        self._change.notify_all()  # who waits for all to be done

    def _take(self) -> Callable[[], None] | None:
        with self._change:
            while not self._jobs or len(self._lanes) > self._threads:
                if self._closed or len(self._lanes) > self._threads:
                    self._lanes.remove(threading.current_thread())
                    return None
                self._change.wait()
            self._working += 1
            return heapq.heappop(self._jobs)[2]
