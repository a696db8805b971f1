"""Calls into a storage from SGLang's threads: on threads of ours, behind core's guard, left behind where that is safe.

SGLang waits for each call, and takes the pages back as soon as it has an answer. So a call that may still touch pages
is waited for, however late it is, and any other is left at its deadline. In both cases everything that follows is
refused at once, until the late ones have returned: a dead store costs misses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from stepwell.engine.breaker import State
from stepwell.engine.guard import Guard, IoLimits
from stepwell.engine.lanes import Lanes
from stepwell.types import Failed, PageResult


class Ticket:
    """A call under way. Whoever touches SGLang's pages outside of a storage holds `lock` and looks at `left` first."""

    __slots__ = ("_over", "left", "lock", "results")

    def __init__(self, count: int) -> None:
        self.left = False
        """The caller has gone, and its pages are no longer ours."""
        self.lock = threading.Lock()
        self.results: list[PageResult] = [Failed("late")] * count
        self._over = threading.Event()

    def leave(self) -> None:
        """Let the caller go."""
        with self.lock:
            self.left = True
        self._over.set()

    def end(self, results: list[PageResult]) -> None:
        """The call has returned."""
        if not self.left:
            self.results = results
        self._over.set()

    def wait(self) -> list[PageResult]:
        """Until it has ended or was left."""
        self._over.wait()
        return self.results


Job = tuple[Callable[[Ticket], Sequence[PageResult]], int]
"""What to do, and how many results come of it."""


class Calls:
    """Runs jobs. Thread-safe; nothing raises."""

    def __init__(self, limits: IoLimits) -> None:
        self.limits = limits
        self._lanes = Lanes(limits.threads, "stepwell.sglang")
        self.guard = Guard(limits, late=self._lanes.stand_in, back=self._lanes.recovered)
        self._closing = threading.Event()
        self._queued: set[Ticket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="stepwell.sglang.watch", daemon=True).start()

    def run(self, jobs: Sequence[Job], *, reading: bool, leave: bool) -> list[list[PageResult]]:
        """The results of all jobs. `leave`: a late one may be left behind."""
        tickets = [self._start(*job, reading, leave) for job in jobs]
        return [ticket.wait() for ticket in tickets]

    def pause(self, attempt: int) -> bool:
        """Wait before the next attempt to write; False where there should be none."""
        if attempt >= self.limits.retries or self.guard.late or self.guard.state(reading=False) is not State.CLOSED:
            return False
        return not self._closing.wait(self.limits.retry_s * 2**attempt)

    def close(self, wait_s: float = 5.0) -> bool:
        """Start nothing more and wait for what is under way; False where something is left."""
        self._closing.set()
        self.guard.close()
        self._lanes.close(wait_s)
        with self._lock:
            queued, self._queued = self._queued, set()
        for ticket in queued:
            ticket.leave()
        return self.guard.close() == 0

    def _start(self, ask: Callable[[Ticket], Sequence[PageResult]], count: int, reading: bool, leave: bool) -> Ticket:
        ticket = Ticket(count)

        def job() -> None:
            with self._lock:
                self._queued.discard(ticket)
            give_up = ticket.leave if leave else None
            ticket.end(self.guard.call(lambda: ask(ticket), count, reading=reading, give_up=give_up))

        with self._lock:
            if self._closing.is_set():
                ticket.leave()
                return ticket
            self._queued.add(ticket)
        self._lanes.queue(job)
        return ticket

    def _watch(self) -> None:
        while not self._closing.wait(min(0.25, self.limits.timeout_s / 4)):
            self.guard.watch(time.monotonic())
