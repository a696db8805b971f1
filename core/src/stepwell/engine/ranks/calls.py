"""Calls to the storages of ranks: from any thread, many at once, each answered once by every rank that was asked.

A call ends with its last answer, since until then a rank may touch the call's pages. A rank that ends fails its calls
at once, and with it all others, which are ended too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum

import msgspec

from stepwell.engine.ranks import wire
from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.wire import Nonsense, Word
from stepwell.engine.spawned import error_of
from stepwell.errors import ConfigError, PluginError

Answered = bytes | Exception


class Verb(IntEnum):
    """What is asked of a rank's storage."""

    MAKE = 0
    """With what it is made of."""
    ATTACH = 1
    PAGES = 2
    """A `pages.Ask`."""
    SCAN = 3
    """The first batch or the next; answered by nothing at the end."""
    DELETE = 4
    CLOSE = 5


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call on its way."""

    id: int
    storage: int
    """Which of the storages that the rank has."""
    verb: Verb
    body: bytes


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What came of it; a `spawned.complaint` where it failed."""

    id: int
    failed: bool
    body: bytes


class RankError(Exception):
    """A rank could not do what it was asked."""


class _Waiting:
    def __init__(self, ranks: Mapping[int, bytes]) -> None:
        self.missing = set(ranks)
        self.answers: dict[int, Answered] = {}
        self.done = threading.Event()

    def take(self, rank: int, answer: Answered) -> None:
        self.missing.discard(rank)
        self.answers[rank] = answer
        if not self.missing:
            self.done.set()


class Calls:
    """All calls of one runner. `ask` on any thread, the rest on the one that hears ranks."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._last = self._storages = 0
        self._why: Exception | None = None
        self._values: dict[int, dict[int, dict[str, float]]] = {}
        """What each rank counts for each storage."""

    @property
    def over(self) -> bool:
        """Whether no rank can be asked any more."""
        return self._why is not None

    def storage(self) -> int:
        """A number for a further storage."""
        with self._lock:
            self._storages += 1
            return self._storages

    def ask(
        self, storage: int, verb: Verb, bodies: Mapping[int, bytes], wait_s: float | None = None
    ) -> dict[int, Answered]:
        """Ask ranks, each its own, all at once; what each answers, or why it does not.

        `wait_s`: who has not answered by then has failed; only for calls that touch no pages.
        """
        waiting = _Waiting(bodies)
        with self._lock:
            if self._why is not None:
                return dict.fromkeys(bodies, self._why)
            self._last += 1
            number = self._last
            self._waiting[number] = waiting
        for rank, body in bodies.items():
            with suppress(OSError):  # it is gone; who hears it knows how, and ends us
                self.links[rank].stream.say(Word.CALL, wire.encode(Call(number, storage, verb, body)))
        if waiting.done.wait(wait_s):
            return waiting.answers
        with self._lock:
            late = RankError(f"it did not answer within {wait_s:g} s")
            return {**dict.fromkeys(waiting.missing, late), **waiting.answers}

    def all(
        self, storage: int, verb: Verb, bodies: Mapping[int, bytes], wait_s: float | None = None
    ) -> dict[int, bytes]:
        """`ask`, where every rank has to do it. Raises what the first one says that cannot, with its number."""
        answers = self.ask(storage, verb, bodies, wait_s)
        good = {rank: answer for rank, answer in answers.items() if not isinstance(answer, Exception)}
        for rank, answer in sorted(answers.items()):
            if isinstance(answer, ConfigError | PluginError | NotImplementedError) and answer is not self._why:
                raise type(answer)(f"rank {rank}: {answer}")
            if isinstance(answer, Exception):
                raise answer if answer is self._why else RankError(f"rank {rank}: {answer}")
        return good

    def values(self, storage: int) -> dict[str, float]:
        """What ranks count for a storage, or for RUNNER, summed up."""
        total: dict[str, float] = {}
        with self._lock:
            for told in self._values.values():
                for name, value in told.get(storage, {}).items():
                    total[name] = total.get(name, 0.0) + value
        return total

    # --- what ranks say ------------------------------------------------------------------------------------------

    def replied(self, rank: int, body: bytes) -> None:
        """A rank answered. Raises Nonsense."""
        reply = wire.decoded(body, Reply)
        answer = error_of(reply.body, RankError) if reply.failed else reply.body
        with self._lock:
            waiting = self._waiting.get(reply.id)
            if waiting is None or rank not in waiting.missing:
                raise Nonsense("a reply to nothing")
            waiting.take(rank, answer)
            if not waiting.missing:
                del self._waiting[reply.id]

    def counted(self, rank: int, body: bytes) -> None:
        """A rank says what its storages count. Raises Nonsense."""
        told = wire.decoded(body, dict[int, dict[str, float]])
        with self._lock:
            self._values[rank] = told

    def end(self, why: Exception) -> None:
        """No rank will answer any more."""
        with self._lock:
            self._why = self._why or why
            for waiting in self._waiting.values():
                for rank in list(waiting.missing):
                    waiting.take(rank, self._why)
            self._waiting.clear()
