"""What the next step holds: decode rows, prompts under way, new requests, saves; and for how many steps it counts."""

from __future__ import annotations

from stepwell.engine.admit import Admission
from stepwell.engine.batch import Batch
from stepwell.engine.copies import Copies
from stepwell.engine.prompts import Prompts
from stepwell.engine.room import RoomMaker
from stepwell.engine.turns import Turns
from stepwell.schedule.plan import Draft


class Planner:
    """Makes drafts. `max_steps`: the longest horizon."""

    def __init__(
        self,
        batch: Batch,
        copies: Copies,
        room: RoomMaker,
        prompts: Prompts,
        admission: Admission,
        turns: Turns,
        max_steps: int,
    ) -> None:
        self._batch = batch
        self._copies = copies
        self._room = room
        self._prompts = prompts
        self._admission = admission
        self._turns = turns
        self._max_steps = max_steps

    def draft(self, now: float) -> Draft:
        """The next step, pages taken for all of it; False where there is nothing to do."""
        draft, batch, room = Draft(), self._batch, self._room
        room.begin()
        self._admission.begin()
        batch.sweep()
        rows = self._turns.rows(prompts=bool(batch.prefilling))
        if rows:
            self._decode(draft)
        if self._turns.prompts(rows=bool(draft.decodes)):
            budget = self._prompts.go_on(draft, waiting=not self._admission.settled)
            if not room.short:
                self._prompts.top_up(draft, self._admission.run(draft, budget, now))
        if not (rows or draft.chunks):
            self._decode(draft)  # prompts got no pages: they do not hold up answers
        if room.short:
            draft.drop_ended()
        draft.saves = self._copies.plan_saves()
        return draft

    @property
    def gave_up(self) -> bool:
        """Whether somebody gave pages up while the last draft was made: another may find more to do."""
        return (self._room.short or self._admission.made_way) and not (self._batch.flying or self._copies.saving)

    def horizon(self, draft: Draft, *, due: bool) -> int:
        """For how many steps nothing can change, pages for all of them allocated.

        `due`: steps in flight may let somebody start who waits.
        """
        steps = self._max_steps
        if steps == 1 or draft.chunks or draft.saves or self._batch.prefilling or self._room.short:
            return 1
        if due or not self._admission.settled:
            return 1
        steps = min(steps, min(seat.last - seat.planned for seat in draft.decodes))
        return self._room.horizon(draft, steps) if steps > 1 else 1

    def _decode(self, draft: Draft) -> None:
        draft.decodes = [seat for seat in self._batch.decoding if seat.planned < seat.until or self._room.row(seat)]
