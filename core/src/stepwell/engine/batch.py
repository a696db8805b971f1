"""Who runs: seats with pages and slots, which of them are still on their prompt, and how far steps have come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from stepwell.cache.cache import Cache, Lease
from stepwell.engine.stats import Cause
from stepwell.schedule.following import Leaders
from stepwell.schedule.job import Job, Seat
from stepwell.schedule.plan import Draft, Slots


class Batch:
    """The running requests of one brain, and everything that belongs to one of them as long as it runs."""

    def __init__(self, cache: Cache, slots: int, eos: tuple[int, ...]) -> None:
        self._cache = cache
        self._eos = eos
        self.slots = Slots(slots)
        self.leaders = Leaders(cache.shape.page_size)
        self.prefilling: list[Seat] = []
        """Part of the prompt is not launched yet; oldest first."""
        self.decoding: list[Seat] = []
        self.edited: list[Seat] = []
        """Their page tables changed since the last plan; perhaps more than once."""
        self.launched = 0
        """Number of the last step launched."""
        self.completed = 0
        """Number of the last step completed."""
        self._gone = False
        self._leaving: dict[Seat, Cause] = {}
        """They give way as soon as no step in flight computes them: nothing of theirs is computed in vain."""

    @property
    def flying(self) -> bool:
        """Whether a step is in flight."""
        return self.launched > self.completed

    @property
    def seats(self) -> Iterator[Seat]:
        """All that run."""
        return (seat for seat in chain(self.decoding, self.prefilling) if not seat.ended)

    def sit(self, job: Job, lease: Lease) -> Seat:
        """A job was admitted."""
        seat = job.seat = Seat(job, self.slots.take(), lease, self._eos)
        if job.cached is not None:
            seat.cached = job.cached
        self.leaders.add(seat, lease.cached.device if lease.loads else lease.cached.total)
        self.edited.append(seat)
        return seat

    def leave(self, seat: Seat, *, publish: bool, expires: float | None = None) -> None:
        """A seat's pages and slot go back. Steps in flight that use them are waited for by cache and slots."""
        seat.ended = seat.left = True
        self._leaving.pop(seat, None)
        if publish and seat.store and not seat.loading:
            digests = seat.job.request.digests
            self._cache.publish(seat.lease, seat.computed(), final=True, expires=expires, digests=digests)
        self._cache.close(seat.lease)
        self.leaders.remove(seat)
        self.slots.leave(seat.slot, self.launched)
        self.slots.completed(self.completed)
        self._gone = True

    def give_way(self, seat: Seat, cause: Cause) -> None:
        """No further step is planned for a seat; it leaves when those in flight have completed."""
        seat.ended = self._gone = True
        self._leaving[seat] = cause

    @property
    def leaving(self) -> bool:
        """Whether somebody gives way and has not left yet."""
        return bool(self._leaving)

    def may_leave(self) -> list[tuple[Seat, Cause]]:
        """Who gives way and can leave now."""
        return [(seat, cause) for seat, cause in self._leaving.items() if seat.done >= seat.planned]

    def sweep(self) -> None:
        """Forget those that left."""
        if self._gone:
            self.decoding = [seat for seat in self.decoding if not seat.ended]
            self.prefilling = [seat for seat in self.prefilling if not seat.ended]
            self._gone = False

    def took_off(self, draft: Draft) -> None:
        """A step was launched: who has all of its prompt launched decodes from the next step on."""
        self.edited.clear()
        for seat, end in draft.chunks:
            if end == seat.target:
                seat.until = min(seat.lease.capacity, seat.last)
                self.decoding.append(seat)
        self.prefilling = [seat for seat in self.prefilling if seat.planned < seat.target]
        self.prefilling += [seat for seat in draft.admitted if seat.planned < seat.target]

    def landed(self, number: int) -> None:
        """A step has completed."""
        self.completed = number
        self._cache.step_completed(number)
        self.slots.completed(number)
