"""Prompts under way: how they share the prompt tokens of a step, among themselves and with those admitted into it."""

from __future__ import annotations

from stepwell.cache.cache import Cache
from stepwell.engine.batch import Batch
from stepwell.engine.room import RoomMaker
from stepwell.schedule.admission import chunk_end
from stepwell.schedule.plan import Draft

NEWCOMERS = 4
"""One part in so many of a step's prompt tokens is for those who are admitted just now."""


class Prompts:
    """`budget`: most prompt tokens of a step."""

    def __init__(self, cache: Cache, batch: Batch, room: RoomMaker, budget: int) -> None:
        self._cache = cache
        self._batch = batch
        self._room = room
        self._budget = budget
        self._page = cache.shape.page_size

    def go_on(self, draft: Draft, *, waiting: bool) -> int:
        """Go on with prompts under way, oldest first; answers what is left of the step's budget.

        A part of it is kept for those who wait, so that a long prompt does not hold up short ones.
        """
        kept = 0
        if self._batch.slots and waiting:
            kept = self._budget // NEWCOMERS // self._page * self._page
        budget = self._budget - kept
        for seat in self._batch.prefilling:
            end = chunk_end(seat.planned, seat.target, budget, self._page)
            if end == seat.planned or seat.ended:
                continue
            end = self._room.chunk(seat, end)
            if end > seat.planned:
                draft.chunks.append((seat, end))
                budget -= end - seat.planned
        return budget + kept

    def top_up(self, draft: Draft, budget: int) -> None:
        """What nobody who waits could use goes to the prompts under way after all."""
        for at, (seat, end) in enumerate(draft.chunks):
            further = chunk_end(end, seat.target, budget, self._page)
            if further > end and self._cache.extend(seat.lease, further):
                self._batch.edited.append(seat)
                draft.chunks[at] = seat, further
                budget -= further - end
