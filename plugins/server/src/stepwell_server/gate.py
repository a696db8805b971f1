"""How many answers may wait for their first token at once."""

from __future__ import annotations

from stepwell_server.errors import bad, unavailable


class Gate:
    """Counts answers that were asked for and have not begun."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting = 0

    def enter(self, answers: int) -> None:
        """Let a request in, or refuse it: for now, or for good where its answers alone are too many."""
        if answers > self._limit:
            raise bad(None, f"{answers} answers are more than the {self._limit} that may wait; ask for fewer at once")
        if self.waiting + answers > self._limit:
            raise unavailable(f"{self.waiting} answers are waiting already; try again later", "queue_full", 1)
        self.waiting += answers

    def leave(self, answers: int = 1) -> None:
        """Answers have begun, or were given up."""
        self.waiting -= answers
