"""The process that a storage has to itself: makes it, maps the arena, and answers one thread of the engine a line."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import mmap
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from stepwell.abc.storage import Storage
from stepwell.engine.apart import wire
from stepwell.engine.apart.wire import Line, Verb, Word
from stepwell.engine.making import Place, made
from stepwell.engine.supervise import die_with
from stepwell.errors import ConfigError
from stepwell.types import StoredPage

NEW_LINE, CLOSE = b"+", b"x"
"""What is said on the socket that a process is started with, once it has its storage."""
LOG_MARK = "\x1f"
LOG_NEWLINE = "\x1e"


class Start(msgspec.Struct, frozen=True):
    """What a process is told first."""

    path: list[str]
    """Where modules are found."""
    level: int
    """From which log records are wanted."""
    recipe: bytes
    """A pickled Recipe."""


class Memory(msgspec.Struct, frozen=True):
    """The arena, whose descriptor comes with the line on which this is said."""

    nbytes: int
    name: str
    slots: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class PlaceText:
    """A Place that can travel."""

    name: str
    device: str
    rank: int
    world: int
    folder: Path | None
    no_folder: str
    """Why there is none."""

    def place(self) -> Place:
        """The place again."""
        return Place(self.name, self.device, self._folder, rank=self.rank, world=self.world)

    def _folder(self) -> Path:
        if self.folder is None:
            raise ConfigError(self.no_folder)
        return self.folder


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a storage is made of; all of it has names that lead to the same things in both processes."""

    factory: Callable[..., object]
    settings: object
    place: PlaceText
    where: str
    """As messages name the choice."""

    def make(self) -> Storage:
        """The storage. Raises what making it raises, as `making.make` does."""
        return made(self.factory, self.settings, Storage, self.place.place(), self.where)  # type: ignore[type-abstract]


class Mapping:
    """The engine's arena in this process; implements ArenaView."""

    def __init__(self, fd: int, memory: Memory) -> None:
        self._map = mmap.mmap(fd, memory.nbytes)
        if hasattr(mmap, "MADV_DONTDUMP"):
            with suppress(OSError):  # a wish: a crash should not write all of it to a core file
                self._map.madvise(mmap.MADV_DONTDUMP)
        self.fd, self.name, self.nbytes = fd, memory.name, memory.nbytes
        self.memory = memoryview(self._map)
        self.address = int(np.frombuffer(self._map, dtype=np.uint8).ctypes.data)
        self._slots = memory.slots

    def slots(self, group: int) -> tuple[int, int, int]:
        return self._slots[group]

    def parts(self, group: int) -> tuple[int, int]:
        return 1, self.slots(group)[1]


class Server:
    """The storage, and the threads that serve it, one a line."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._arena: Mapping | None = None

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
                    answer = (Word.ERROR, 0, wire.complaint(error), b"")
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
        self._arena = Mapping(fd, memory)
        self._storage.attach(self._arena)


class ToParent(logging.Handler):
    """Log records as marked lines on the standard error, which the engine reads."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record).replace("\n", LOG_NEWLINE)
        whole = f"{LOG_MARK}{record.levelno} {record.name} {text}\n".encode(errors="replace")
        with suppress(OSError):  # nobody reads any more
            os.write(2, whole)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to close, or until the engine is gone."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.engine.apart")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    die_with(options.parent)
    faulthandler.enable()
    end = socket.socket(fileno=options.fd)
    line = Line(end)
    try:
        storage = _made(msgspec.msgpack.decode(line.receive()[3], type=Start))
    except BaseException as error:
        line.send(Word.ERROR, 0, 0, wire.complaint(error))
        return 2
    line.send(Word.DONE)
    server = Server(storage)
    while True:
        said, fds, _, _ = socket.recv_fds(end, 1, 2)
        if said == NEW_LINE:
            server.take(fds)
        else:
            _leave(storage, line, said)


def _made(start: Start) -> Storage:
    sys.path[:] = start.path
    logging.basicConfig(level=start.level, format="%(message)s", handlers=[ToParent()])
    recipe = pickle.loads(start.recipe)
    assert isinstance(recipe, Recipe)
    return recipe.make()


def _leave(storage: Storage, line: Line, said: bytes) -> None:
    """End this process, and leave nothing to the interpreter's own end, in which native threads may hang or crash."""
    if said == CLOSE:
        try:
            storage.close()
        except BaseException as error:
            line.send(Word.ERROR, 0, 0, wire.complaint(error))
        else:
            line.send(Word.DONE)
    sys.stdout.flush()
    os._exit(0)
