"""What core answers a schedule policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepwell.abc.schedule import Prefix, ScheduleView, WaitingView
from stepwell.cache.cache import Cache
from stepwell.schedule.job import Job, Seat


class View(ScheduleView):
    """Probes are remembered on the job for as long as the cache's version stands. `seats()` are those that run."""

    def __init__(self, cache: Cache, seats: Callable[[], Iterable[Seat]]) -> None:
        self._cache = cache
        self._seats = seats
        self._now = 0.0

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now

    @property
    def running(self) -> Sequence[Job]:
        return [seat.job for seat in self._seats()]

    @property
    def version(self) -> int:
        return self._cache.version

    def cached(self, request: WaitingView) -> int:
        if not isinstance(request, Job):
            raise TypeError(f"{request!r} is not a request of this queue")
        version = self._cache.version
        if request.probed_at != version:
            request.probed = self._cache.probe(request.request.namespace, request.tokens)
            request.probed_at = version
        return request.probed

    def prefix(self, request: WaitingView) -> Prefix | None:
        return None

    def expected(self, request: WaitingView) -> float:
        return request.max_new
