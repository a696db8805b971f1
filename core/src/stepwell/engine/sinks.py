"""Events on their way to sinks: a thread and a bounded queue for each, so that none holds up another, or serving."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from stepwell.abc.sink import Event, Sink

QUEUE = 100_000
"""Events that may wait for a sink; beyond that the oldest are dropped and counted."""
HOOK_S = 1.0
"""Hooks hear of events at most this often."""


class SinkLane:
    """One sink and the thread that feeds it."""

    def __init__(
        self,
        name: str,
        take: Callable[[Sequence[Event]], None],
        close: Callable[[], None] | None = None,
        *,
        every_s: float = 0.0,
        limit: int = QUEUE,
    ) -> None:
        """`every_s`: the least time between two calls of `take`."""
        self._name, self._take, self._close = name, take, close
        self._every_s, self._limit = every_s, limit
        self._log = logging.getLogger("stepwell.sinks")
        self._change = threading.Condition()
        self._waiting: deque[Event] = deque(maxlen=limit)
        self._closing = threading.Event()
        self.dropped = 0
        """Events dropped because the sink was too slow."""
        self.failed = 0
        """Batches lost because the sink raised."""
        self._thread = threading.Thread(target=self._run, name=f"stepwell-sink-{name}", daemon=True)
        self._thread.start()

    def put(self, events: Sequence[Event]) -> None:
        """Hand events over; never blocks for the sink."""
        with self._change:
            self.dropped += max(0, len(self._waiting) + len(events) - self._limit)
            self._waiting.extend(events)
            self._change.notify()

    def close(self, wait_s: float) -> None:
        """Deliver what waits and close the sink; a sink that hangs is left behind."""
        with self._change:
            self._closing.set()
            self._change.notify()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._log.warning("sink %s did not end within %g s; its last events are lost", self._name, wait_s)

    def abandon(self) -> None:
        """Deliver nothing more; what waits is dropped, and the sink is left open."""
        with self._change:
            self._waiting.clear()
            self._close = None
            self._closing.set()
            self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._closing.is_set():
                    self._change.wait()
                batch = list(self._waiting)
                self._waiting.clear()
            if not batch:
                break
            self._contained(lambda: self._take(batch))  # noqa: B023 - called at once
            if self._every_s:
                self._closing.wait(self._every_s)
        if self._close is not None:
            self._contained(self._close)

    def _contained(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                self._log.warning(
                    "sink %s: %s: %s; further failures are only counted", self._name, type(error).__name__, error
                )


class Sinks:
    """All sinks of an engine."""

    def __init__(self, sinks: Sequence[Sink], hook: Callable[[Sequence[Event]], None] | None) -> None:
        self._lanes = [SinkLane(type(sink).__name__, sink.take, sink.close) for sink in sinks]
        if hook is not None:
            self._lanes.append(SinkLane("hooks", hook, every_s=HOOK_S))

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, events: Sequence[Event]) -> None:
        """Hand events to every sink."""
        if events:
            for lane in self._lanes:
                lane.put(events)

    def values(self) -> dict[str, float]:
        """Counters by name."""
        return {
            "sink_dropped": float(sum(lane.dropped for lane in self._lanes)),
            "sink_failed": float(sum(lane.failed for lane in self._lanes)),
        }

    def close(self, wait_s: float = 2.0) -> None:
        """Deliver what waits, and close."""
        for lane in self._lanes:
            lane.close(wait_s)
