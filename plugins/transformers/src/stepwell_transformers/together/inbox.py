"""What the thread that computes does next: the engine's steps in order, and rounds that other groups call it into."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from stepwell_transformers.together.rounds import Rounds

T = TypeVar("T")

END_S = 10.0
"""A group that ends, and is called into no round for so long, goes without asking."""


class Inbox(Generic[T]):
    """A queue of steps; None ends it. Without `rounds` nothing else comes.

    `idle(call)` takes part in one round with nothing to compute; `call`: no other group knows of that round. A call is
    answered by a step of the own engine where one waits, and by `idle` where none does.
    """

    def __init__(self, rounds: Rounds | None = None, idle: Callable[[bool], None] = lambda call: None) -> None:
        self._queue: queue.SimpleQueue[T | int | None] = queue.SimpleQueue()
        self._rounds, self._idle = rounds, idle
        self._put = self._got = 0
        """Steps, and the end, that were put there and taken out."""
        self.lost: Exception | None = None
        """Why this group takes part in no round any more."""

    def put(self, step: T | None) -> None:
        """On one thread."""
        self._put += 1
        self._queue.put(step)

    def knock(self, number: int) -> None:
        """Another group has gone into round `number`. On any thread."""
        self._queue.put(number)

    def get(self) -> T | None:
        """The next step; None: no more, and no other group needs this one any more."""
        while True:
            found = self._queue.get()
            if isinstance(found, int):
                self._answer(found)
                continue
            self._got += 1
            return self._end() if found is None else found

    def _answer(self, number: int) -> None:
        if self.lost is not None or self._rounds is None or number < self._rounds.next:
            return
        if self._put == self._got or self._rounds.ending:
            self._join(call=False)
        else:
            self._queue.put(number)  # behind the steps that wait, one of which may go there

    def _join(self, *, call: bool) -> None:
        try:
            self._idle(call)
        except Exception as error:
            self.lost = error

    def _end(self) -> None:
        """Take part in what the others still compute, until all of them end."""
        if self._rounds is None:
            return
        self._rounds.ending = True
        self._join(call=True)
        with suppress(queue.Empty):
            while not self._rounds.over and self.lost is None:
                found = self._queue.get(timeout=END_S)
                if isinstance(found, int):
                    self._answer(found)
