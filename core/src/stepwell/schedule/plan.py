"""The step plan while it is being put together, and the record of a step in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from stepwell.abc.runner import PageCopy, Row, SlotOpen, StepPlan, StepResult, TableEdit
from stepwell.schedule.job import Seat
from stepwell.types import TOKEN_BYTES


@dataclass(slots=True, eq=False)
class Flight:
    """What a step in flight computes and for whom: decode rows first, then chunks (with where each ends)."""

    number: int
    decodes: list[Seat]
    chunks: list[tuple[Seat, int]]
    loads: list[tuple[Seat, PageCopy]]
    saves: list[PageCopy]
    touched: dict[Seat, None]
    """Every seat whose state on the runner this step changes."""
    horizon: int

    def misfit(self, result: StepResult) -> str | None:
        """What is wrong with a result; a row without the tokens it was to sample would wait for them for ever."""
        tokens, decodes = result.tokens, len(self.decodes)
        if len(tokens) != decodes + len(self.chunks):
            return f"the runner answered for {len(tokens)} rows of {decodes + len(self.chunks)}"
        if not 1 <= result.steps <= self.horizon:
            return f"the runner did {result.steps} decode steps of {self.horizon}"
        if set(map(len, tokens[:decodes])) - {result.steps} or any(
            len(sampled) != (end == seat.target)
            for (seat, end), sampled in zip(self.chunks, tokens[decodes:], strict=True)
        ):
            return "the runner did not sample what it was told to"
        return None


class Draft:
    """One plan in the making."""

    def __init__(self) -> None:
        self.decodes: list[Seat] = []
        self.chunks: list[tuple[Seat, int]] = []
        self.opens: list[SlotOpen] = []
        self.loads: list[tuple[Seat, PageCopy]] = []
        self.saves: list[PageCopy] = []
        self.admitted: list[Seat] = []

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks or self.saves)

    def admit(self, seat: Seat, end: int) -> None:
        """A seat's first step: its slot is opened, its pages are loaded, and its first chunk ends at `end`."""
        job = seat.job
        self.admitted.append(seat)
        self.opens.append(SlotOpen(seat.slot, job.request.sampling, job.tokens, job.generated_before))
        self.loads += [(seat, copy) for copy in seat.lease.loads]
        self.chunks.append((seat, end))

    def drop_ended(self) -> None:
        """Take the rows of those out who had to give way while this plan was made."""
        self.decodes = [seat for seat in self.decodes if not seat.ended]
        self.chunks = [(seat, end) for seat, end in self.chunks if not seat.ended]

    def launch(
        self, number: int, horizon: int, closes: tuple[int, ...], edited: Iterable[Seat]
    ) -> tuple[StepPlan, Flight]:
        """The finished plan; takes the seats' table edits and moves their planned positions on."""
        decodes = self.decodes
        rows = [Row(seat.slot, seat.planned, 1, None, True) for seat in decodes]
        for seat in decodes:
            seat.planned += 1
        for seat, end in self.chunks:
            rows.append(_chunk(seat, end))
            seat.planned = end
        touched = {seat: None for seat in edited if not seat.ended}
        plan = StepPlan(
            number,
            tuple(rows),
            tuple(self.opens),
            closes,
            tuple(edit for seat in touched for edit in take_edits(seat)),
            tuple(copy for _, copy in self.loads),
            tuple(self.saves),
            horizon,
        )
        return plan, Flight(number, decodes, self.chunks, self.loads, self.saves, touched, horizon)


def take_edits(seat: Seat) -> list[TableEdit]:
    """The changes of a seat's page tables since they were last taken."""
    edits = seat.lease.edits
    taken = [TableEdit(seat.slot, group, first, pages) for group, first, pages in edits]
    edits.clear()
    return taken


def _chunk(seat: Seat, end: int) -> Row:
    start = seat.planned
    tokens = seat.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
    return Row(seat.slot, start, end - start, tokens, end == seat.target)


class Slots:
    """The runner's slots. One is given away again only after the last step that uses it has completed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._used = 0
        """Slots that were ever taken."""
        self._free: list[int] = []
        self._leaving: deque[tuple[int, int]] = deque()
        self._closing: list[int] = []

    def __len__(self) -> int:
        """Slots that can be taken now."""
        return len(self._free) + self._count - self._used

    @property
    def leaving(self) -> int:
        """Slots that come free when the steps in flight have completed."""
        return len(self._leaving)

    def take(self) -> int:
        """A free slot."""
        if self._free:
            return self._free.pop()
        self._used += 1
        return self._used - 1

    def leave(self, slot: int, last_step: int) -> None:
        """The slot's request ended; steps up to `last_step` may use it."""
        self._leaving.append((last_step, slot))

    def completed(self, number: int) -> None:
        """Steps up to `number` have completed: who left before they were launched is out."""
        while self._leaving and self._leaving[0][0] <= number:
            slot = self._leaving.popleft()[1]
            self._closing.append(slot)
            self._free.append(slot)

    def take_closes(self) -> tuple[int, ...]:
        """Slots that the next plan closes (it may open them again)."""
        closes = tuple(self._closing)
        self._closing.clear()
        return closes
