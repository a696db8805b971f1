"""A circuit breaker: keeps calls away from a backend that fails again and again, and lets them back by itself.

Pure: time is passed in, so that a test or a replay can own it.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Whether calls go through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Opens after `failures` in a row; after a pause one call may try again; each further failure doubles the pause."""

    def __init__(self, failures: int = 5, pause_s: float = 1.0, longest_s: float = 60.0) -> None:
        self._limit = failures
        self._first_s, self._longest_s = pause_s, longest_s
        self._pause_s = pause_s
        self._in_a_row = 0
        self._until = 0.0
        self._trial: float | None = None
        self.state = State.CLOSED
        self.opened = 0
        """How often it opened."""

    def allow(self, now: float) -> bool:
        """Whether a call may go through; where this answers yes, `succeeded` or `failed` has to follow."""
        if self.state is State.CLOSED:
            return True
        if self.state is State.OPEN and now >= self._until:
            self.state, self._trial = State.HALF_OPEN, now
            return True
        if self.state is State.HALF_OPEN and self._trial is not None and now - self._trial > self._longest_s:
            self._trial = now  # the trial call never came back; try another
            return True
        return False

    def succeeded(self) -> None:
        """A call went well."""
        self._in_a_row = 0
        self._pause_s = self._first_s
        self._trial = None
        self.state = State.CLOSED

    def failed(self, now: float) -> None:
        """A call failed. Calls that were let through before it opened may still say so; they prolong nothing."""
        self._in_a_row += 1
        if self.state is State.HALF_OPEN:
            self._pause_s = min(self._pause_s * 2, self._longest_s)
            self._open(now)
        elif self.state is State.CLOSED and self._in_a_row >= self._limit:
            self._open(now)

    def _open(self, now: float) -> None:
        self.state = State.OPEN
        self._until = now + self._pause_s
        self._trial = None
        self.opened += 1
