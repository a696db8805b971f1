"""Requests that share a prefix which is being computed wait for it instead of computing it again.

The first of them leads. A waiting request follows a leader while the next page that the leader will publish is one of
its own. It asks anew each time, so a leader that publishes past the fork, finishes or is aborted holds nobody up, and
the next of its followers leads in its place.
"""

from __future__ import annotations

from stepwell.schedule.job import Job, Seat
from stepwell.types import TOKEN_BYTES


class Leaders:
    """Running requests that are still computing whole pages of their prompts, by what those begin with."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._first = page * TOKEN_BYTES
        self._seats: dict[tuple[bytes, bytes], dict[Seat, None]] = {}

    def add(self, seat: Seat, visible: int) -> None:
        """A request was admitted whose pages below `visible` others can use already."""
        seat.visible = visible // self._page * self._page
        if seat.store and self._leads(seat):
            self._seats.setdefault(self._key(seat.job), {})[seat] = None

    def published(self, seat: Seat, length: int) -> None:
        """The pages of its prompt below `length` are in the tree, on device."""
        seat.visible = max(seat.visible, length // self._page * self._page)
        if not self._leads(seat):
            self.remove(seat)

    def remove(self, seat: Seat) -> None:
        """It leads no more."""
        key = self._key(seat.job)
        seats = self._seats.get(key)
        if seats is not None and seats.pop(seat, seat) is None and not seats:
            del self._seats[key]

    def leader(self, job: Job) -> Seat | None:
        """Whom a waiting request should wait for."""
        if not self._seats:
            return None
        seats = self._seats.get(self._key(job), ())
        return next((seat for seat in seats if self._shares_next_page(seat, job)), None)

    def __len__(self) -> int:
        return sum(map(len, self._seats.values()))

    def _shares_next_page(self, seat: Seat, job: Job) -> bool:
        at = seat.visible * TOKEN_BYTES
        end = at + self._first
        mine, theirs = job.tokens, seat.tokens
        return end < len(mine) and mine[at:end] == theirs[at:end] and mine.startswith(theirs[:at])

    def _leads(self, seat: Seat) -> bool:
        return seat.visible + self._page <= seat.target

    def _key(self, job: Job) -> tuple[bytes, bytes]:
        return job.request.namespace, job.tokens[: self._first]
