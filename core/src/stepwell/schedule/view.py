"""What core answers a schedule policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepwell.abc.schedule import Prefix, ScheduleView, WaitingView
from stepwell.cache.cache import Cache
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.probes import Probes, leave


def at_most(generated: int, max_new: int) -> float:
    """All that a request may generate yet."""
    return max_new - generated


class View(ScheduleView):
    """Answers about jobs that wait are remembered, and only asked anew where the tree changed.

    `seats()` are those that run; `expect(generated, max_new)` says how many tokens a request will generate yet.
    """

    def __init__(
        self, cache: Cache, seats: Callable[[], Iterable[Seat]], expect: Callable[[int, int], float] = at_most
    ) -> None:
        self._cache = cache
        self._seats = seats
        self._expect = expect
        self._probes = Probes(cache)
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
        job = request if isinstance(request, Job) else _job(request)
        cached = self._probes.cached(job)
        if job.line is None:
            leave(job)
        return cached

    def prefix(self, request: WaitingView) -> Prefix | None:
        job = _job(request)
        prefix = self._probes.prefix(job)
        if job.line is None:
            leave(job)
        return prefix

    def expected(self, request: WaitingView) -> float:
        job = _job(request)
        return self._expect(job.generated, job.max_new)

    def news(self) -> list[Job]:
        """Jobs of whom `cached` or `prefix` may answer otherwise than before; some perhaps wait no longer."""
        return self._probes.news()


def _job(request: WaitingView) -> Job:
    if not isinstance(request, Job):
        raise TypeError(f"{request!r} is not a request of this queue")
    return request
