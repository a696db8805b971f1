"""Pieces of work in processes of their own, so many at a time, watched while they run.

A process for each piece: what it needs is inherited or sent once, its memory goes with it, and when it is killed it is
known whose work is lost. Ctrl-C is the parent's: children do not hear it, and end with the parent in whatever way that
ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from stepwell.engine.supervise import die_with
from stepwell.errors import ConfigError, StepwellError

TELL_S = 0.5
"""Between two words of a child on how far it is."""
GRACE_S = 5.0

T = TypeVar("T")
R = TypeVar("R")

Follow = Callable[[Callable[[], float]], None]
"""Given to the work: it hands over what answers the share that is done."""
Work = Callable[[T, Follow], R]


class Lost(StepwellError):
    """A piece whose process has no result."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a piece raised, as it can be sent."""

    text: str
    trace: str
    config: bool
    """A mistake of the user."""
    defect: bool
    """Nothing that was raised on purpose."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A piece is under way: how much of it is done, 0 to 1."""

    number: int
    share: float


@dataclass(frozen=True, slots=True)
class Ended(Generic[R]):
    """A piece is done."""

    number: int
    result: R


def each(work: Work[T, R], pieces: Sequence[tuple[str, T]], jobs: int) -> Generator[Moved | Ended[R], None, None]:
    """Do all pieces, each with a name for messages; yields as they begin, move and end.

    Raises what a piece raised, with its name; the others are ended then, as they are when the iterator is closed.
    """
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    begun = 0
    try:
        while begun < len(pieces) or running:
            while begun < len(pieces) and len(running) < jobs:
                pipe, process = _start(work, pieces[begun][1])
                running[pipe] = begun, process
                yield Moved(begun, 0.0)
                begun += 1
            ready = wait(list(running))
            for pipe in [pipe for pipe in running if pipe in ready]:
                number, process = running[pipe]
                said: float | tuple[R] = _heard(pieces[number][0], pipe, process)
                if isinstance(said, float):
                    yield Moved(number, said)
                    continue
                del running[pipe]
                pipe.close()
                process.join()
                yield Ended(number, said[0])
    finally:
        for _, process in running.values():
            process.terminate()
        for pipe, (_, process) in running.items():
            process.join(GRACE_S)
            if process.is_alive():
                process.kill()
            pipe.close()


def _start(work: Work[T, R], piece: T) -> tuple[Connection, BaseProcess]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    # Children that are forked have the trace as it is; elsewhere, where forking is not safe, it is sent.
    linux = sys.platform == "linux"
    start = multiprocessing.get_context("fork").Process if linux else multiprocessing.get_context("spawn").Process
    process = start(target=_child, args=(work, piece, theirs, os.getpid()), daemon=True)
    with _deaf():
        process.start()
    theirs.close()
    return ours, process


def _heard(name: str, pipe: Connection, process: BaseProcess) -> float | tuple[R]:
    """What a child says: how far it is, or its result."""
    try:
        said: float | tuple[R] | _Failed = pipe.recv()
    except (EOFError, OSError):  # before a message, or within one
        process.join()
        raise Lost(f"{name}: {_end(process.exitcode or 0)}") from None
    if not isinstance(said, _Failed):
        return said
    if said.defect:
        raise RuntimeError(f"{name} failed in its process:\n{said.trace}")
    raise (ConfigError if said.config else Lost)(f"{name}: {said.text}")


def _end(code: int) -> str:
    if code >= 0:
        return f"its process ended with status {code} and no result"
    return f"its process was killed by {signal.Signals(-code).name}; if memory is short, take fewer --jobs"


@contextmanager
def _deaf() -> Iterator[None]:
    """Let children that are started within not hear Ctrl-C, from their first instant on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the child ---


def _child(work: Work[T, R], piece: T, pipe: Connection, parent: int) -> None:
    die_with(parent)
    said: tuple[R] | _Failed
    with _Telling(pipe) as telling:
        try:
            said = (work(piece, telling.follow),)
        except Exception as error:
            config, defect = isinstance(error, ConfigError), not isinstance(error, StepwellError)
            said = _Failed(str(error), traceback.format_exc(), config, defect)
    pipe.send(said)


class _Telling:
    """Tells the parent how far the work is, from a thread of its own."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._share: Callable[[], float] = float
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True, name="telling")

    def follow(self, share: Callable[[], float]) -> None:
        """From now on `share` says how far the work is."""
        self._share = share

    def __enter__(self) -> _Telling:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        while not self._over.wait(TELL_S):
            self._pipe.send(float(self._share()))
