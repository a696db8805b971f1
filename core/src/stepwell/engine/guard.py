"""One call into a backend, guarded: a deadline, a breaker, an answer that fits, and a count of all that went wrong."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepwell.engine.breaker import Breaker, State
from stepwell.engine.page_io import Unfit
from stepwell.engine.seal import Damaged
from stepwell.types import Done, Failed, Missing, PageResult

WARN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class IoLimits:
    """How storage is driven."""

    threads: int = 4
    batch_pages: int = 64
    """Pages a call; between calls a fetch reports how far it is and can be stopped."""
    abreast: int = 2
    """Calls of one fetch at once."""
    timeout_s: float = 10.0
    stuck: int = 8
    """Calls beyond their deadline at which no new ones are made."""
    retries: int = 2
    """Of a page that could not be written."""
    retry_s: float = 0.05
    """Before the first retry; doubles."""
    failures: int = 5
    """Failed calls in a row at which calls pause."""
    pause_s: float = 1.0
    """The first pause; doubles with each further failure."""


@dataclass(slots=True)
class IoStats:
    """Counters since the start."""

    queries: int = 0
    reads: int = 0
    writes: int = 0
    pages_read: int = 0
    pages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    missing: int = 0
    """Pages that storage had promised and did not have."""
    retries: int = 0
    late: int = 0
    """Calls that outlived their deadline."""
    failed: dict[str, int] = field(default_factory=dict)
    """Pages that failed (keys, for a query), by kind: exception, short, failed, checksum, pause, stuck, closed."""


class _Call:
    __slots__ = ("give_up", "late", "reading", "started")

    def __init__(self, started: float, reading: bool, give_up: Callable[[], None] | None) -> None:
        self.started, self.reading, self.give_up = started, reading, give_up
        self.late = False


class Guard:
    """Every call goes through `call`, which never raises. Thread-safe."""

    def __init__(
        self,
        limits: IoLimits,
        *,
        late: Callable[[], None],
        back: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        name: str = "storage",
    ) -> None:
        """`late()`: a call has become late; `back()`: a late call has returned. `name` says whose calls they are."""
        self._limits, self._clock = limits, clock
        self._on_late, self._on_back = late, back
        self._name = name
        self._log = logging.getLogger(f"stepwell.{name}")
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        # Two, so that a full disk does not keep reads away.
        self._breakers = {reading: Breaker(limits.failures, limits.pause_s) for reading in (True, False)}
        self._warned: dict[str, float] = {}
        self._closed = False
        self.stats = IoStats()

    def call(
        self,
        ask: Callable[[], Sequence[PageResult]],
        count: int,
        *,
        reading: bool,
        give_up: Callable[[], None] | None = None,
    ) -> list[PageResult]:
        """The results of a call, `count` of them whatever happens. `give_up()` is called when it becomes late."""
        call = _Call(self._clock(), reading, give_up)
        with self._lock:
            refusal = self._refusal(reading, call.started)
            if refusal is None:
                self._calls.add(call)
        if refusal is not None:
            return self._fail(refusal, count, f"{count} pages are not asked for: {refusal}")
        try:
            results = self._judge(list(ask()), count)
        except Unfit as error:
            results = self._fail("short", count, str(error))
        except BaseException as error:  # a native client that panics, a task that was cancelled: all miss alike
            results = self._fail("exception", count, f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._calls.discard(call)
        if call.late:
            self._on_back()
        self._tell(call, results)
        return results

    def watch(self, now: float) -> None:
        """Give up calls whose deadline has passed. Cheap; for every now and then."""
        late = self._overdue(now, self._limits.timeout_s)
        if late:
            self._warn("late", f"a call has not returned for {self._limits.timeout_s:g} s")
        self._give_up(late)

    def abandon(self) -> None:
        """Let no further call through, and give up those that are under way."""
        self.close()
        self._give_up(self._overdue(self._clock(), -1.0))

    def _overdue(self, now: float, most_s: float) -> list[_Call]:
        with self._lock:
            late = [call for call in self._calls if not call.late and now - call.started > most_s]
            for call in late:
                call.late = True
                self._breakers[call.reading].failed(now)
            self.stats.late += len(late)
        return late

    def _give_up(self, late: Sequence[_Call]) -> None:
        for call in late:
            self._on_late()
            if call.give_up is not None:
                call.give_up()

    def close(self) -> int:
        """Let no further call through; answers how many have not returned."""
        with self._lock:
            self._closed = True
            return len(self._calls)

    def count(self, kind: str, pages: int, text: str) -> None:
        """Count failed pages, and say so, not too often."""
        with self._lock:
            self.stats.failed[kind] = self.stats.failed.get(kind, 0) + pages
        self._warn(kind, text)

    def add(self, **counts: int) -> None:
        """Raise counters of `stats`."""
        with self._lock:
            for name, count in counts.items():
                setattr(self.stats, name, getattr(self.stats, name) + count)

    def state(self, *, reading: bool) -> State:
        """Whether calls go through."""
        with self._lock:
            return self._breakers[reading].state

    @property
    def late(self) -> int:
        """Calls beyond their deadline that have not returned."""
        with self._lock:
            return sum(call.late for call in self._calls)

    def values(self) -> dict[str, float]:
        """Counters and gauges by name, for metrics."""
        late = self.late
        with self._lock:
            named = {name: float(getattr(self.stats, name)) for name in IoStats.__slots__ if name != "failed"}
            named |= {f"failed_{kind}": float(count) for kind, count in self.stats.failed.items()}
            named["late_now"] = float(late)
            for name, reading in (("read", True), ("write", False)):
                named[f"{name}_pauses"] = float(self._breakers[reading].opened)
                named[f"{name}_paused"] = float(self._breakers[reading].state is not State.CLOSED)
        return named

    def _tell(self, call: _Call, results: Sequence[PageResult]) -> None:
        with self._lock:
            breaker = self._breakers[call.reading]
            if results and all(isinstance(result, Failed) and not isinstance(result, Damaged) for result in results):
                breaker.failed(self._clock())
            elif not call.late:
                breaker.succeeded()

    def _judge(self, results: list[PageResult], count: int) -> list[PageResult]:
        if len(results) != count:
            return self._fail("short", count, f"{len(results)} results came for {count} pages")
        if not all(isinstance(result, Done | Missing | Failed) for result in results):
            return self._fail("short", count, "results that are not page results came")
        damaged = [result.reason for result in results if isinstance(result, Damaged)]
        if damaged:
            self.count("checksum", len(damaged), f"{len(damaged)} pages came back damaged ({damaged[0]})")
        failed = [result.reason for result in results if isinstance(result, Failed) and not isinstance(result, Damaged)]
        if failed:
            self.count("failed", len(failed), f"{len(failed)} of {count} pages failed ({failed[0]})")
        return results

    def _refusal(self, reading: bool, now: float) -> str | None:
        if self._closed:
            return "closed"
        if sum(call.late for call in self._calls) >= self._limits.stuck:
            return "stuck"
        return None if self._breakers[reading].allow(now) else "pause"

    def _fail(self, kind: str, pages: int, text: str) -> list[PageResult]:
        self.count(kind, pages, text)
        return [Failed(text)] * pages

    def _warn(self, kind: str, text: str) -> None:
        now = self._clock()
        if now - self._warned.get(kind, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned[kind] = now
            self._log.warning("%s: %s; this counts as missing", self._name, text)
