"""What core answers a schedule policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell.abc.schedule import ScheduleView, WaitingView
from stepwell.cache.cache import Cache
from stepwell.schedule.job import Job, Seat


class View(ScheduleView):
    """Probes are remembered on the job for as long as the cache's version stands."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._now = 0.0
        self._seats: Iterable[Seat] = ()

    def at(self, now: float, seats: Iterable[Seat]) -> View:
        """The same view at a later time."""
        self._now = now
        self._seats = seats
        return self

    @property
    def now(self) -> float:
        return self._now

    @property
    def running(self) -> Sequence[Job]:
        return [seat.job for seat in self._seats if not seat.ended]

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
