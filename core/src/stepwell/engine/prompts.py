"""Prompts under way: how they share the prompt tokens of a step, among themselves and with those admitted into it."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.room import RoomMaker
from stepwell.schedule.admission import chunk_end
from stepwell.schedule.decisions import Decisions
from stepwell.schedule.job import Seat
from stepwell.schedule.plan import Draft

NEWCOMERS = 4
"""One part in so many of a step's prompt tokens is for those who are admitted just now."""


class Prompts:
    """`budget`: most prompt tokens of a step."""

    def __init__(self, cache: Cache, batch: Batch, room: RoomMaker, decisions: Decisions, budget: int) -> None:
        self._cache = cache
        self._batch = batch
        self._room = room
        self._decisions = decisions
        self._budget = budget
        self._page = cache.shape.page_size

    def go_on(self, draft: Draft, *, waiting: bool) -> int:
        """Go on with prompts under way as the policy splits the budget; answers what is left of it.

        A part of it is kept for those who wait, so that a long prompt does not hold up short ones.
        """
        kept = 0
        if self._batch.slots and waiting:
            kept = self._budget // NEWCOMERS // self._page * self._page
        seats = [seat for seat in self._batch.prefilling if not seat.ended]
        left = spare = self._budget - kept
        shares = self._shares(seats, left)
        spare -= sum(shares)
        for seat, share in zip(seats, shares, strict=True):
            if seat.ended:  # it gave way to one before it
                spare += share
                continue
            end = self._room.chunk(seat, chunk_end(seat.planned, seat.target, share + spare, self._page))
            spare += share - (end - seat.planned)
            if end > seat.planned:
                draft.chunks.append((seat, end))
                left -= end - seat.planned
        return left + kept

    def top_up(self, draft: Draft, budget: int) -> None:
        """What nobody who waits could use goes to the prompts under way after all."""
        for at, (seat, end) in enumerate(draft.chunks):
            further = chunk_end(end, seat.target, budget, self._page)
            if further > end and self._cache.extend(seat.lease, further):
                self._batch.edited.append(seat)
                draft.chunks[at] = seat, further
                budget -= further - end

    def _shares(self, seats: Sequence[Seat], budget: int) -> Sequence[int]:
        """Tokens for each; a lone prompt gets them all, whatever a policy thinks."""
        if len(seats) < 2:
            return split(seats, [budget] * len(seats), budget, self._page)
        return split(seats, self._decisions.chunks([seat.job for seat in seats], budget), budget, self._page)


def split(seats: Sequence[Seat], wishes: Sequence[int], budget: int, page: int) -> list[int]:
    """Tokens for each prompt under way: whole pages of what is wished for it, no more than `budget` together.

    The first always gets on, by a page at least. What is left goes to the first that can use it.
    """
    ends = []
    least = page
    for seat, wish in zip(seats, wishes, strict=True):
        end = chunk_end(seat.planned, seat.target, min(max(wish, least), budget), page)
        budget -= end - seat.planned
        ends.append(end)
        least = 0
    shares = []
    for seat, end in zip(seats, ends, strict=True):
        further = chunk_end(end, seat.target, budget, page)
        budget -= further - end
        shares.append(further - seat.planned)
    return shares
