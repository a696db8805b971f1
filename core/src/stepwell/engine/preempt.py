"""Who gives way to a waiting request that does not fit, and the claim that it has on what they leave.

Nobody gives way for ever: whoever did so as often as allowed is left alone, so a queue of n requests sees at most
n * max_retractions of it between two ends; and who gave way to another never takes from it in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.engine.batch import Batch
from stepwell.engine.copies import Copies
from stepwell.engine.seating import Seating
from stepwell.schedule.admission import Room
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.job import Job, Seat


class Preemption:
    """Reckons before anybody is retracted: all who have to give way do, or nobody does."""

    def __init__(
        self, batch: Batch, copies: Copies, seating: Seating, decisions: Decisions, max_retractions: int
    ) -> None:
        self._batch = batch
        self._copies = copies
        self._seating = seating
        self._decisions = decisions
        self._max_retractions = max_retractions
        self.claimant: Job | None = None
        """For whom somebody gave way: until it runs, or is gone, nobody is admitted before it."""

    def victims(self, job: Job, budget: int, room: Room) -> Sequence[Seat]:
        """The fewest, in the policy's order, that have to give way so that a request fits; none where it is no use.

        `room` is what the pass reckons with. Nobody has to where it is enough to wait for what comes free anyway.
        """
        batch = self._batch
        if not self._decisions.preempts or batch.leaving or self._copies.rescuing:
            return ()
        slots = bool(batch.slots or batch.slots.leaving)
        if slots and self._seating.would_sit(job, budget, room, ()):
            return ()
        seats = self._eligible(job)
        if not seats or not self._enough(job, budget, room, seats):
            return ()
        return self._fewest(job, budget, room, seats)

    def claim(self, job: Job, victims: Sequence[Seat]) -> None:
        """They give way for it."""
        self.claimant = job
        for seat in victims:
            seat.job.gave_way += (job.order,)

    def settle(self, job: Job) -> None:
        """A request runs, or is gone."""
        if self.claimant is job:
            self.claimant = None

    def _eligible(self, job: Job) -> list[Seat]:
        """Seats of those whom the policy names and who may have to give way: not who was passed too often already."""
        running = [seat.job for seat in self._batch.seats]
        named = self._decisions.preempt(job, running) if running else []
        return [
            one.seat
            for one in named
            if one.seat and not one.aged and one.retractions < self._max_retractions and one.order not in job.gave_way
        ]

    def _fewest(self, job: Job, budget: int, room: Room, seats: list[Seat]) -> list[Seat]:
        """As few of the first as suffice; then without those who turn out to be of no use beside the others."""
        low, high = 1, len(seats)
        while low < high:
            middle = (low + high) // 2
            if self._enough(job, budget, room, seats[:middle]):
                high = middle
            else:
                low = middle + 1
        chosen = seats[:low]
        for seat in seats[: low - 1]:
            others = [other for other in chosen if other is not seat]
            if others and self._enough(job, budget, room, others):
                chosen = others
        return chosen

    def _enough(self, job: Job, budget: int, room: Room, seats: Sequence[Seat]) -> bool:
        return self._seating.would_sit(job, budget, room.without(seats), seats)
