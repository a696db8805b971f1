"""One cycle of planning and moving, which all ranks finish or drop together.

Ranks say their votes to each other and take the least of each number; what follows is a function of those alone, so no
rank goes on where another has stopped. A cycle that has not been finished by its deadline is dropped, however silent
the planner is.
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What all ranks do next."""

    WAIT = "wait"
    GO = "go"
    """Every rank is ready, with the same plan."""
    DROP = "drop"
    """One failed, has another plan or another cycle, or the deadline has passed."""


class Cycle:
    """Steps of one cycle. Every rank makes it and ticks it in the same steps, those without tokens included."""

    def __init__(self, number: int, deadline: int) -> None:
        """`number`: counts cycles, from 0; `deadline`: steps, at least 1."""
        if number < 0 or deadline < 1:
            raise ValueError(f"cycle {number} with {deadline} steps")
        self.number, self.left = number, deadline
        self._plan: int | None = None
        self._fine = True

    def tick(self) -> None:
        """A step has passed. The count of those left ends at 0."""
        self.left = max(0, self.left - 1)

    def ready(self, digest: int) -> None:
        """Say that the plan of that digest can be carried out here."""
        self._plan = digest

    def failed(self) -> None:
        """Say that it cannot; all ranks will drop the cycle."""
        self._fine = False

    def vote(self) -> tuple[int, ...]:
        """Numbers of which ranks take the least each."""
        plan = self._plan or 0
        return (self.number, -self.number, int(self._fine), int(self._plan is not None), plan, -plan, self.left)

    @staticmethod
    def verdict(least: tuple[int, ...]) -> Verdict:
        """What those come to; the same on every rank."""
        number, most_number, fine, ready, plan, most_plan, left = least
        if not fine or number != -most_number:
            return Verdict.DROP
        if ready:
            return Verdict.GO if plan == -most_plan else Verdict.DROP
        return Verdict.DROP if left == 0 else Verdict.WAIT
