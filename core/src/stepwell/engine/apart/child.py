"""The process that a storage has to itself: makes it, maps the arena, and answers one thread of the engine a line."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from stepwell.abc.storage import Storage
from stepwell.cache.arena import Region
from stepwell.cache.mapped import Mapped
from stepwell.engine.apart import wire
from stepwell.engine.apart.wire import Line, Verb, Word
from stepwell.engine.spawned import begin, complaint, ours
from stepwell.types import StoredPage

NEW_LINE, CLOSE = b"+", b"x"
"""What is said on the socket that a process is started with, once it has its storage."""


class Memory(msgspec.Struct, frozen=True):
    """The arena, whose descriptor comes with the line on which this is said."""

    nbytes: int
    name: str
    regions: list[Region]


class Server:
    """The storage, and the threads that serve it, one a line."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._arena: Mapped | None = None

    def take(self, fds: Sequence[int]) -> None:
        """Serve a new line; a second descriptor is the arena's."""
        line = Line(socket.socket(fileno=fds[0]))
        arena = fds[1] if len(fds) > 1 else -1
        threading.Thread(target=self._serve, args=(line, arena), daemon=True, name="stepwell.storage").start()

    def _serve(self, line: Line, arena_fd: int) -> None:
        pages: Iterator[Sequence[StoredPage]] = iter(())
        with suppress(EOFError, OSError):  # the engine let go of this line
            while True:
                verb, count, segments, body = line.receive()
                try:
                    match verb:
                        case Verb.ATTACH:
                            self._attach(arena_fd, msgspec.msgpack.decode(body, type=Memory))
                            answer: tuple[int, int, bytes, bytes] = (Word.DONE, 0, b"", b"")
                        case Verb.SCAN | Verb.NEXT:
                            pages = iter(self._storage.scan()) if verb == Verb.SCAN else pages
                            batch = next(pages, None)
                            word = Word.END if batch is None else Word.DONE
                            answer = (word, 0, wire.listed(batch or ()), b"")
                        case _:
                            answer = (Word.DONE, *self._call(verb, count, segments, body))
                except BaseException as error:
                    answer = (Word.ERROR, 0, complaint(error), b"")
                line.send(answer[0], answer[1], 0, *answer[2:])
        line.close()

    def _call(self, verb: int, count: int, segments: int, body: memoryview) -> tuple[int, bytes, bytes]:
        keys = wire.parted(body[: count * wire.KEY_BYTES])
        if verb == Verb.CONTAINS:
            held = bytes(map(bool, self._storage.contains(keys)))
            return len(held), held, b""
        if verb == Verb.DELETE:
            self._storage.delete(keys)
            return 0, b"", b""
        assert self._arena is not None, "pages move only once there is an arena"
        views = wire.views_of(body[count * wire.KEY_BYTES :], count, segments, self._arena)
        call = self._storage.read if verb == Verb.READ else self._storage.write
        results = call(keys, views)
        return len(results), *wire.coded(results)

    def _attach(self, fd: int, memory: Memory) -> None:
        self._arena = Mapped(fd, memory.nbytes, memory.regions, memory.name)
        self._storage.attach(self._arena)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to close, or until the engine is gone."""
    end = ours("stepwell.engine.apart", arguments)
    line = Line(end)
    try:
        storage = begin(line.receive()[3]).make(Storage)  # type: ignore[type-abstract]
    except BaseException as error:
        line.send(Word.ERROR, 0, 0, complaint(error))
        return 2
    line.send(Word.DONE)
    server = Server(storage)
    while True:
        said, fds, _, _ = socket.recv_fds(end, 1, 2)
        if said == NEW_LINE:
            server.take(fds)
        else:
            _leave(storage, line, said)


def _leave(storage: Storage, line: Line, said: bytes) -> None:
    """End this process, and leave nothing to the interpreter's own end, in which native threads may hang or crash."""
    if said == CLOSE:
        try:
            storage.close()
        except BaseException as error:
            line.send(Word.ERROR, 0, 0, complaint(error))
        else:
            line.send(Word.DONE)
    sys.stdout.flush()
    os._exit(0)
