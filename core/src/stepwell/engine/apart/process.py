"""One process of a storage, from the side of the engine: started, spoken with on lines, and known to be dead."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from contextlib import suppress

import msgspec

from stepwell.cache.arena import Region
from stepwell.engine.apart.child import CLOSE, NEW_LINE, Memory
from stepwell.engine.apart.wire import Line, StorageError, Verb, Word
from stepwell.engine.spawn import spawn, start_of
from stepwell.engine.spawned import error_of
from stepwell.engine.supervise import ending
from stepwell.types import ArenaView

START_S = 120.0
"""How long making a storage, or registering the arena, may take at most."""
MOST_GROUPS = 64


class Gone(Exception):
    """The process ended, for the reason that this says, and so did what was under way in it."""


class Process:
    """A process with a storage in it. Calls from any thread; a line serves one at a time."""

    def __init__(self, name: str, recipe: bytes) -> None:
        """Start it. It ends with the thread that does this, or with this process."""
        self.name = name
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._deadlines: dict[Line, float] = {}
        self._process, self._end = spawn("stepwell.engine.apart", f"storage {name!r}", name)
        self._control = Line(self._end)
        self._recipe = recipe

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def make(self, wait_s: float | None = None) -> None:
        """Have it make the storage. Raises what that raises, Gone where the process ends or is not ready in time."""
        wait_s = START_S if wait_s is None else wait_s
        self._end.settimeout(wait_s)
        try:
            self._control.send(Verb.START, 0, 0, start_of(self._recipe))
            word, _, _, body = self._control.receive()
        except TimeoutError:
            self.kill()
            raise Gone(f"was not ready within {wait_s:g} s") from None
        except (OSError, EOFError):
            raise Gone(f"{self.kill()} before it was ready") from None
        if word == Word.ERROR:
            error = error_of(body, StorageError)
            self.kill()
            raise error

    def attach(self, arena: ArenaView, name: str) -> None:
        """Have it map and register the arena. Raises what that raises, Gone where the process ends over it."""
        regions = []
        with suppress(LookupError):
            for group in range(MOST_GROUPS):
                regions.append(Region(*arena.slots(group), *arena.parts(group)))
        said = msgspec.msgpack.encode(Memory(arena.nbytes, name, regions))
        line = self.take(arena.fd)
        word, _, body = self.ask(line, START_S, Verb.ATTACH, 0, 0, said)
        self.give(line)
        if word == Word.ERROR:
            raise error_of(body, StorageError)

    def take(self, arena_fd: int = -1) -> Line:
        """A line that nobody uses. Gone where the process has ended."""
        if arena_fd < 0:
            with suppress(IndexError):
                return self._idle.pop()
        fds = [] if arena_fd < 0 else [arena_fd]
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._end, [NEW_LINE], [theirs.fileno(), *fds])
        except OSError:
            ours.close()
            raise Gone(self.kill()) from None
        return Line(ours)

    def give(self, line: Line) -> None:
        """Take a line back on which nothing is under way."""
        self._idle.append(line)

    def ask(
        self, line: Line, limit_s: float, verb: Verb, count: int, segments: int, *parts: bytes
    ) -> tuple[int, int, memoryview]:
        """One question; its answer (word, count, body) stays until the line is given back or asked again.

        Gone where the process ends meanwhile: then nothing in it moves any more, whatever it was about to do.
        """
        self._deadlines[line] = time.monotonic() + limit_s
        try:
            line.send(verb, count, segments, *parts)
            word, entries, _, body = line.receive()
        except (OSError, EOFError):
            raise Gone(self.kill()) from None
        finally:
            del self._deadlines[line]
        return word, entries, body

    def overdue(self, now: float) -> bool:
        """Whether a call has outlived its limit."""
        return any(limit < now for limit in list(self._deadlines.values()))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def close(self, wait_s: float) -> None:
        """Have it close the storage and end; kill it where it does not in time. Raises what closing raised."""
        error = None
        with suppress(OSError, EOFError):
            self._end.settimeout(wait_s)
            self._end.sendall(CLOSE)
            word, _, _, body = self._control.receive()
            error = error_of(body, StorageError) if word == Word.ERROR else None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self.kill()
        if error is not None:
            raise error

    def kill(self) -> str:
        """End it, wait until it has, and say how it ended. Blocks as long as the kernel holds it."""
        self._process.kill()
        status = self._process.wait()
        with self._lock:
            self._end.close()
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()
        for line in list(self._deadlines):
            line.end()
        return ending(status)
