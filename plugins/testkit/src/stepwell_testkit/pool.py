"""Ranks that are processes of this machine, kept over several tests."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from stepwell import Dispatcher
from stepwell_testkit.context import KitContext

R = TypeVar("R")
Make = Callable[[KitContext], Dispatcher[Any]]
ENDING_S = 5.0


class Processes:
    """A `World` with a process a rank; a context manager, at whose end all are gone.

    `make` makes a rank's dispatcher, not opened, from a context with rank, world and a place to meet in `folder`.
    Forked ranks have what was imported already; `spawn` is for libraries that do not survive a fork, and wants `make`
    to be importable.
    """

    def __init__(
        self,
        make: Make,
        ranks: int,
        folder: Path,
        *,
        device: str = "cpu",
        limit_s: float = 60.0,
        start: Literal["fork", "spawn"] = "fork",
    ) -> None:
        self._make, self._count, self._folder = make, ranks, folder
        self._device, self._limit_s, self._start = device, limit_s, start
        self._workers: list[_Worker] = []
        self._meetings = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @property
    def ranks(self) -> int:
        """How many, those that were killed included."""
        return self._count

    def renewed(self) -> Self:
        """With a new dispatcher on each rank: for the next test. Ranks of which one failed or was killed start anew."""
        if not all(worker.well for worker in self._workers):
            self._end()
        if not self._workers:
            context = mp.get_context(self._start)
            self._workers = [_Worker(context, rank, self._make) for rank in range(self._count)]
        self._meetings += 1
        meet = (self._folder / f"meet-{self._meetings}").as_uri()
        places = [
            KitContext(self._folder, rank=rank, world=self._count, meet=meet, device=self._device)
            for rank in range(self._count)
        ]
        self._ask(places)
        return self

    def run(self, work: Callable[[Dispatcher[Any], int], R]) -> list[R]:
        """`work(dispatcher, rank)` on every rank that lives; what each returned. The first error is raised here."""
        return self._ask([work] * self._count)

    def kill(self, rank: int) -> None:
        """End a rank without any warning."""
        self._workers[rank].kill()

    def _ask(self, works: list[Any]) -> list[Any]:
        living = [worker for worker in self._workers if worker.lives]
        for worker in living:
            worker.tell(works[worker.rank])
        end = time.monotonic() + self._limit_s
        answers: dict[int, Any] = {}
        while left := {worker.ear: worker for worker in living if worker.rank not in answers}:
            for ear in wait(left, timeout=0.1):
                worker = left[ear]
                answers[worker.rank] = worker.answer()
            if time.monotonic() > end:
                late = [worker for worker in living if worker.rank not in answers]
                for worker in late:
                    worker.well = False
                raise AssertionError(f"ranks {[one.rank for one in late]} did not come back within {self._limit_s:g} s")
        return [answers[worker.rank] for worker in living]

    def _end(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers = []


class _Worker:
    """The parent's end of one rank."""

    def __init__(self, context: Any, rank: int, make: Make) -> None:
        self.rank = rank
        self.well = True
        self.lives = True
        self.ear, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, rank, make), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, work: object) -> None:
        self.ear.send(work)

    def answer(self) -> Any:
        """What its work returned; raises what that raised."""
        try:
            good, what = self.ear.recv()
        except EOFError:
            self.well = self.lives = False
            raise AssertionError(f"the process of rank {self.rank} has ended") from None
        if not good:
            self.well = False
            raise what
        return what

    def kill(self) -> None:
        self.well = self.lives = False
        self._process.kill()
        self._process.join(ENDING_S)


def _serve(ear: Connection, rank: int, make: Make) -> None:
    """Be a rank: make a dispatcher for a place, and do with it what comes, until the parent is gone."""
    dispatcher: Dispatcher[Any] | None = None
    parent = os.getppid()
    while True:
        # Ranks forked later hold the parent's end of the pipe open, so its end alone would not be heard.
        while not ear.poll(1.0):
            if os.getppid() != parent:
                return
        try:
            work = ear.recv()
        except EOFError:
            return
        try:
            if isinstance(work, KitContext):
                dispatcher = make(work)
                answer: tuple[bool, Any] = True, None
            else:
                answer = True, work(dispatcher, rank)
        except BaseException as error:
            answer = False, _portable(error, rank)
        ear.send(answer)


def _portable(error: BaseException, rank: int) -> BaseException:
    """The error, or its words where it does not survive the way to the parent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return AssertionError(f"rank {rank}: {type(error).__name__}: {error}")
    error.add_note(f"on rank {rank}")
    return error
