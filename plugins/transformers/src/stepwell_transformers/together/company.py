"""What other runners have to do with a step: they agree on it, and experts change their places before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stepwell_transformers.together.inbox import Inbox
from stepwell_transformers.together.together import Together
from stepwell_transformers.twobatch.decide import Size

T = TypeVar("T")


def nothing() -> None:
    """Experts stay where they are."""


class Company:
    """Of one executor, on the thread that computes."""

    def __init__(self, together: Together | None = None, between: Callable[[], None] = nothing) -> None:
        """`together`: with runners of other groups; `between`: done before each step, on all ranks in the same ones."""
        self._together, self._between = together, between

    @property
    def alone(self) -> bool:
        """Whether steps are this runner's own."""
        return self._together is None

    def inbox(self, idle: Callable[[Size], None]) -> Inbox[T]:
        """A queue of steps; `idle` takes part in one that other groups have called this one into."""
        if self._together is None:
            return Inbox()

        def take_part(size: Size) -> None:
            self._between()
            idle(size)

        return self._together.inbox(take_part)

    def before(self, own: Size) -> Size:
        """A step begins; what it is of all that compute it. PeerLost where one of them is gone."""
        size = own if self._together is None else self._together.agree(own)
        self._between()
        return size
