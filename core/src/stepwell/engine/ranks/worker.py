"""The process of one rank: makes its runner, carries plans out in their order, and answers as soon as a step is done.

One thread has the runner, and waits for plans and for the runner's news. Another says that this process lives.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from stepwell.abc.runner import Runner, Step
from stepwell.abc.storage import Storage
from stepwell.cache.arena import Arena
from stepwell.cache.mapped import Mapped
from stepwell.cache.shards import own
from stepwell.engine.counting import counted
from stepwell.engine.making import make_storage
from stepwell.engine.ranks import wire
from stepwell.engine.ranks.combine import share
from stepwell.engine.ranks.shelves import Shelves
from stepwell.engine.ranks.wire import RUNNER, GroupText, Made, Opening, OwnPinning, Pinning, Stream, Word, decoded
from stepwell.engine.spawned import begin, complaint, ours
from stepwell.types import GroupSpec

BEAT_S = 0.5


class Rank:
    """One rank's runner, served over a stream."""

    def __init__(self, stream: Stream, rank: int, world: int, storage: Callable[[bytes], Storage]) -> None:
        """`storage`: what makes one of what the engine says, for an arena of this rank's own."""
        self._stream, self._rank, self._world = stream, rank, world
        self._shelves = Shelves(stream, rank, storage)
        self._runner: Runner | None = None
        self._groups: tuple[GroupSpec, ...] = ()
        self._steps: deque[Step] = deque()
        self._news_read, self._news_write = socket.socketpair()
        self._news_read.setblocking(False)
        self._news_write.setblocking(False)
        self._woken = False
        self._over = self._own = False
        self._opening = True
        """Until the first plan; before it a descriptor may come."""

    def live(self) -> None:
        """Say from now on that this process lives, while its runner is being made as well."""
        threading.Thread(target=self._beat, daemon=True, name="stepwell.beat").start()

    def serve(self, runner: Runner) -> None:
        """Until told to close, or until the engine is gone. Raises what the runner raises."""
        self._runner, self._groups = runner, runner.groups
        self._stream.say(Word.MADE, wire.encode(_made(runner)))
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        poll.register(self._news_read, select.POLLIN)
        while not self._over:
            poll.poll()
            if self._woken:
                self._woken = False
                with contextlib.suppress(BlockingIOError):
                    self._news_read.recv(4096)
            for word, body in self._stream.hear(wait=False, fds=self._opening):
                self._do(runner, word, body)
            self._answer(runner)

    def _do(self, runner: Runner, word: int, body: bytes) -> None:
        match word:
            case Word.PLAN:
                self._opening = False
                plan = share(wire.unpacked(body), self._groups, self._rank, self._world, own=self._own)
                self._steps.append(runner.launch(plan))
            case Word.OPEN:
                opening = decoded(body, Opening)
                runner.open(opening.page_size, opening.pages, opening.slots, self._wake)
                self._stream.say(Word.DONE)
            case Word.PIN:
                pinning = decoded(body, Pinning)
                runner.pin(Mapped(self._stream.fds.pop(), pinning.nbytes, pinning.regions))
                self._stream.say(Word.DONE)
            case Word.PIN_OWN:
                self._own = True
                self._pin_own(runner, decoded(body, OwnPinning))
                self._stream.say(Word.DONE)
            case Word.CALL:
                self._shelves.take(body)
            case Word.CLOSE:
                runner.close()
                self._shelves.close()
                self._over = True
                self._stream.say(Word.DONE)
            case _:
                raise wire.Nonsense(f"word {word}")

    def _pin_own(self, runner: Runner, told: OwnPinning) -> None:
        groups = tuple(replace(group, shards=shards) for group, shards in zip(self._groups, told.shards, strict=True))
        arena = Arena.create(own(groups), told.page_size, told.pages, setting=told.setting, named=told.named)
        runner.pin(arena)
        self._shelves.reach(arena, groups)

    def _answer(self, runner: Runner) -> None:
        while self._steps and (result := self._steps[0].poll()) is not None:
            self._steps.popleft()
            self._stream.say(Word.RESULT, wire.answer(result, logprobs=self._rank == 0))
        if runner.late_saves and (saved := runner.saved()):
            self._stream.say(Word.SAVED, wire.encode(wire.bitmaps(saved)))

    def _wake(self) -> None:
        """On any thread."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(BlockingIOError):
                self._news_write.send(b"+")

    def _counts(self) -> dict[int, dict[str, float]]:
        """By storage; the first rank tells of its runner, too."""
        counts = self._shelves.values()
        if self._rank == 0 and (own := counted(self._runner)):
            counts[RUNNER] = own
        return counts

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over:
                counts = self._counts()
                self._stream.say(Word.BEAT, wire.encode(counts) if counts else b"")
                time.sleep(BEAT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to close, or until the engine is gone."""
    stream = Stream(ours("stepwell.engine.ranks", arguments))
    status = 0
    try:
        recipe = begin(stream.first()[1])
        rank = Rank(stream, recipe.place.rank, recipe.place.world, made_here)
        rank.live()
        rank.serve(recipe.make(Runner))  # type: ignore[type-abstract]
    except (EOFError, BrokenPipeError):
        status = 1  # the engine is gone
    except BaseException as error:
        status = 2
        with contextlib.suppress(OSError):
            stream.say(Word.FAILED, complaint(error))
    sys.stdout.flush()
    os._exit(status)  # native threads may hang or crash at the interpreter's own end


def made_here(recipe: bytes) -> Storage:
    """A storage as the engine would make it, which is this process's parent."""
    choice, place, tiers = pickle.loads(recipe)
    return make_storage(choice, place.place(), tiers)


def _made(runner: Runner) -> Made:
    return Made(
        runner.model,
        tuple(map(GroupText.of, runner.groups)),
        runner.preferred_chunk,
        runner.depth,
        runner.max_steps,
        runner.late_saves,
        runner.budget(),
    )
