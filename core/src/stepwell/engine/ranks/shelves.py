"""The storages of one rank over the arena that it has for itself, asked by the brain and answered on threads apart.

The brain bounds how many calls are under way, so each has a thread, and one that hangs holds no other up. Threads stay
once there are: a process that a storage starts may end with the thread that started it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from stepwell.abc.storage import Storage
from stepwell.cache.arena import Arena
from stepwell.engine.counting import counted
from stepwell.engine.page_io import LocalPageIO, PageIO
from stepwell.engine.ranks import wire
from stepwell.engine.ranks.calls import Call, Reply, Verb
from stepwell.engine.ranks.pages import served
from stepwell.engine.ranks.storage import ANEW, keys_of
from stepwell.engine.ranks.wire import Stream, Word
from stepwell.engine.spawned import complaint
from stepwell.errors import PluginError
from stepwell.types import GroupSpec, StoredPage

CLOSE_S = 5.0


class Shelf:
    """One storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.pages: PageIO | None = None
        """Once it is attached."""
        self.listing: Iterator[Sequence[StoredPage]] | None = None

    def listed(self, *, anew: bool) -> bytes:
        """The next batch of a scan; nothing at its end. `anew`: the first, whatever became of the scan before."""
        if anew:
            self.listing = iter(self.storage.scan())
        if self.listing is None:
            raise PluginError("a scan goes on that has not begun, or has ended")
        listing, self.listing = self.listing, None
        for batch in listing:
            if batch:
                self.listing = listing  # one that raised is over
                return msgspec.msgpack.encode(list(batch))
        return b""


class Shelves:
    """All storages of one rank. `take` on the thread that hears the brain."""

    def __init__(self, stream: Stream, rank: int, make: Callable[[bytes], Storage]) -> None:
        """`make`: what it makes of what the brain says."""
        self._stream, self._rank, self._make = stream, rank, make
        self._shelves: dict[int, Shelf] = {}
        self._arena: Arena | None = None
        self._groups: Sequence[GroupSpec] = ()
        self._crew = Crew("stepwell.storage")

    def reach(self, arena: Arena, groups: Sequence[GroupSpec]) -> None:
        """The arena of this rank, and the groups of all."""
        self._arena, self._groups = arena, groups

    def take(self, body: bytes) -> None:
        """Something is asked. Raises Nonsense."""
        call = wire.decoded(body, Call)
        self._crew.do(lambda: self._answer(call))

    def values(self) -> dict[int, dict[str, float]]:
        """What storages count."""
        told = {number: counted(shelf.storage) for number, shelf in list(self._shelves.items())}
        return {number: values for number, values in told.items() if values}

    def close(self) -> None:
        """Close what is left, where nothing hangs in it."""
        if self._crew.settle(CLOSE_S):
            for number in list(self._shelves):
                self._shelves.pop(number).storage.close()

    def _answer(self, call: Call) -> None:
        try:
            reply = Reply(call.id, False, self._done(call))
        except BaseException as error:  # a native client that panics fails its pages
            reply = Reply(call.id, True, complaint(error))
        try:
            self._stream.say(Word.REPLY, wire.encode(reply))
        except OSError:
            return  # the engine is gone, and so will be this process

    def _done(self, call: Call) -> bytes:
        if call.verb is Verb.MAKE:
            self._shelves[call.storage] = Shelf(self._make(call.body))
            return b""
        if call.verb is Verb.CLOSE:
            gone = self._shelves.pop(call.storage, None)
            if gone is not None:
                gone.storage.close()
            return b""
        shelf = self._shelves[call.storage]
        match call.verb:
            case Verb.ATTACH:
                self._attach(shelf)
            case Verb.PAGES:
                if shelf.pages is None:
                    raise PluginError("storage is not attached")
                return served(shelf.pages, call.body)
            case Verb.SCAN:
                return shelf.listed(anew=call.body == ANEW)
            case Verb.DELETE:
                shelf.storage.delete(keys_of(call.body))
        return b""

    def _attach(self, shelf: Shelf) -> None:
        arena = self._arena
        if arena is None:
            raise PluginError("there is no host tier")
        with arena.lending_name():
            shelf.storage.attach(arena)
        shelf.pages = LocalPageIO(shelf.storage, arena, self._groups, self._rank)


class Crew:
    """As many threads as there ever were jobs at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._threads = self._busy = 0

    def do(self, job: Callable[[], None]) -> None:
        """Do it at once, on a thread; it raises nothing."""
        with self._change:
            self._busy += 1
            if self._busy > self._threads:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._jobs.put(job)

    def settle(self, wait_s: float) -> bool:
        """Wait until nothing is under way; whether that came within `wait_s`."""
        with self._change:
            return self._change.wait_for(lambda: not self._busy, wait_s)

    def _run(self) -> None:
        while True:
            self._jobs.get()()
            with self._change:
                self._busy -= 1
                self._change.notify_all()
