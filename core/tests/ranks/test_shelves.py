"""What a rank does with the storages that it has for itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from stepwell.abc.storage import Storage
from stepwell.engine.ranks import wire
from stepwell.engine.ranks.calls import Call, RankError, Reply, Verb
from stepwell.engine.ranks.shelves import Shelves
from stepwell.engine.ranks.storage import ANEW
from stepwell.engine.ranks.wire import Stream
from stepwell.engine.spawned import error_of
from stepwell.types import PageKey, PageResult, PageViews, StoredPage


class Listing(Storage):
    """Lists three pages, or fails after the second, one at a time."""

    def __init__(self) -> None:
        self.fails = False

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        raise NotImplementedError

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        raise NotImplementedError

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        raise NotImplementedError

    def delete(self, keys: Sequence[PageKey]) -> None:
        raise NotImplementedError

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        for number in range(3):
            if self.fails and number == 2:
                raise OSError("no cable")
            yield [StoredPage(bytes([number]) * 40, 1)]


class Asked:
    """A rank's shelves, asked over a stream as the engine does."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        self.storage, self.stream, self._calls = Listing(), Stream(mine), 0
        self.shelves = Shelves(Stream(theirs), 0, lambda recipe: self.storage)
        self.ask(Verb.MAKE)

    def ask(self, verb: Verb, body: bytes = b"") -> bytes:
        self._calls += 1
        self.shelves.take(wire.encode(Call(self._calls, 1, verb, body)))
        reply = msgspec.msgpack.decode(self.stream.first()[1], type=Reply)
        if reply.failed:
            raise error_of(reply.body, RankError)
        return reply.body

    def page(self, ask: bytes) -> int:
        (page,) = msgspec.msgpack.decode(self.ask(Verb.SCAN, ask), type=list[StoredPage])
        return page.key[0]


def test_a_scan_that_failed_half_way_is_over() -> None:
    """The next one lists all, and nobody takes the rest of one for the whole of another."""
    one = Asked()
    one.storage.fails = True
    assert [one.page(ANEW), one.page(b"")] == [0, 1]
    with pytest.raises(RankError, match="no cable"):
        one.ask(Verb.SCAN)
    with pytest.raises(Exception, match="a scan goes on that has not begun"):
        one.ask(Verb.SCAN)
    one.storage.fails = False
    assert [one.page(ANEW), one.page(b""), one.page(b"")] == [0, 1, 2]
    assert one.ask(Verb.SCAN) == b""


def test_a_scan_that_was_given_up_begins_anew() -> None:
    one = Asked()
    assert [one.page(ANEW), one.page(b"")] == [0, 1]
    assert one.page(ANEW) == 0
