"""Batches under way: which memory each has, and that each goes through its four steps once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from stepwell_symm.lane import Lane, Mark


class Step(IntEnum):
    """What was done last with a batch."""

    SENT = 0
    ARRIVED = 1
    RETURNED = 2
    ENDED = 3


@dataclass(eq=False)
class Batch:
    """One between `dispatch_start` and `combine_finish`: the handle of each step."""

    slot: int
    count: int
    """Tokens of this rank."""
    step: Step = Step.SENT
    lent: tuple[torch.Tensor, ...] = ()
    """What the caller gave and kernels may still read."""
    marks: list[Mark] = field(default_factory=list)
    """What runs beside the caller's stream and was not waited for yet."""

    def goes(self, to: Step) -> None:
        """Take the next step, which is `to`."""
        if self.step != to - 1:
            raise RuntimeError(f"a batch that has {self.step.name.lower()} cannot be one that has {to.name.lower()}")
        self.step = to

    def settle(self) -> None:
        """Let the caller's stream wait for what runs beside it; what was lent is the caller's again."""
        for mark in self.marks:
            mark.wait()
        self.marks, self.lent = [], ()


class Slots:
    """Memory for so many batches, used in turn: every rank takes the same, since all make the same calls."""

    def __init__(self, count: int) -> None:
        self._count, self._free = count, deque(range(count))

    def take(self) -> int:
        """The one that is free for longest, so that it is the likeliest to be free on all ranks."""
        if not self._free:
            raise RuntimeError(f"{self._count} batches are under way, and no more may be (in_flight)")
        return self._free.popleft()

    def give(self, slot: int) -> None:
        """It is free."""
        self._free.append(slot)


class Desks:
    """Words that kernels find all else by, a row for each slot; see `device/waits.py`."""

    def __init__(self, lane: Lane, peers: Sequence[int], slots: int, size: int, patience: int) -> None:
        self._host = lane.pinned((1,), torch.int64)
        self.lost = torch.tensor([0, self._host.data_ptr()], dtype=torch.int64).to(lane.device)
        rows = [
            [0, 0, self.lost.data_ptr(), patience, *(base + slot * size for base in peers)] for slot in range(slots)
        ]
        self._rows = torch.tensor(rows, dtype=torch.int64).to(lane.device)

    def __getitem__(self, slot: int) -> torch.Tensor:
        return self._rows[slot]

    @property
    def given_up(self) -> bool:
        """Whether a kernel has; asks no device."""
        return bool(self._host[0])
