"""Copies between device and host that are in flight: saves, which may outlive their step, and loads, which may not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepwell.abc.runner import PageCopy, StepResult
from stepwell.cache.cache import Cache
from stepwell.engine.stats import Counters
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Flight

LATE = 2
"""Plans whose most saves may be in flight where saves outlive their steps: beyond that, new ones wait."""


class Copies:
    """All copies of one brain. `per_step`: pages that a plan saves at most; `late`: a result leaves out its saves."""

    def __init__(
        self, cache: Cache, per_step: int, late: bool, page_bytes: tuple[int, ...], counters: Counters
    ) -> None:
        self._cache = cache
        self._per_step, self._late = per_step, late
        self._page_bytes = page_bytes
        self._counters = counters
        self._saving: dict[int, PageCopy] = {}
        """By number, so the oldest first."""
        self._rescues: list[PageCopy] = []
        """Not in a plan yet."""
        self._relief = 0
        """The last save that somebody's giving way waits for."""
        self.saving = 0
        """Pages on their way to host; until they are there, device cannot take them from the copy."""

    def plan_saves(self) -> list[PageCopy]:
        """What the next plan saves: pages that the tree has, so that the steps which computed them have completed."""
        rescues, self._rescues = self._rescues, []
        urgent = sum(len(copy.device) for copy in rescues)
        most = self._per_step - urgent
        if self._late:
            most = min(most, LATE * self._per_step - self.saving)
        copies = self._cache.saves(most) if most > 0 else []
        self._start(copies)
        return rescues + copies

    def rescue(self, job: Job, computed: bytes) -> None:
        """Save what a request that gave way has in the tree, whatever the write policy says; the next plan does it."""
        job.rescue = self._cache.rescue(job.request.namespace, computed)
        copies = job.rescue.copies
        self._start(copies)
        self._rescues += copies
        self._relief = next(reversed(self._saving), self._relief)
        pages = [0] * len(self._page_bytes)
        for copy in copies:
            pages[copy.group] += len(copy.device)
        self._counters.rescued_tokens += max(pages) * self._cache.shape.page_size

    def let_go(self, job: Job) -> None:
        """A request is back, or gone: what was held on host for it need not be any more."""
        if job.rescue is not None:
            self._cache.let_go(job.rescue)
            job.rescue = None

    @property
    def rescuing(self) -> bool:
        """Whether saves hold pages of somebody who gave way."""
        return next(iter(self._saving), self._relief + 1) <= self._relief

    def _start(self, copies: Iterable[PageCopy]) -> None:
        for copy in copies:
            self._saving[copy.id] = copy
            self.saving += len(copy.device)

    def saved(self, ended: Mapping[int, tuple[bool, ...]]) -> None:
        """Saves that outlived their steps have ended; an id that is none of theirs is a fault of the runner's."""
        for id, ok in ended.items():
            if id in self._saving:
                self._saved(self._saving[id], ok)
            else:
                self._counters.unknown_saves += 1

    def landed(self, flight: Flight, result: StepResult) -> list[Seat]:
        """A step's copies have ended; which of its seats lack what a load was to bring them."""
        if not self._late:
            for copy in flight.saves:
                self._saved(copy, result.copies.get(copy.id, ()))
        failed: dict[Seat, None] = {}
        for seat, copy in flight.loads:
            ok = result.copies.get(copy.id) or (False,) * len(copy.device)
            self._counters.bytes_loaded += sum(ok[: len(copy.device)]) * self._page_bytes[copy.group]
            seat.loading -= 1
            if not self._cache.loaded(seat.lease, copy, ok) and not seat.left:
                failed[seat] = None
        return list(failed)

    def _saved(self, copy: PageCopy, ok: tuple[bool, ...]) -> None:
        del self._saving[copy.id]
        self.saving -= len(copy.device)
        self._counters.bytes_saved += sum(ok[: len(copy.device)]) * self._page_bytes[copy.group]
        self._cache.saved(copy, ok)
