"""A storage that lives in a process of its own, as the engine sees it: it may be slow or away, never in the way.

Whatever the process does, no thread of the engine is held up by more than a wait on a socket. When it dies, what was
under way in it fails at once, and its pages are free, since nobody is left who could write to them. Another one is
started in its place, as often as it takes and with growing pauses; until then calls fail without being asked. A call
that stays away far beyond its deadline costs the process its life: that is how its pages come back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TypeVar

from stepwell.abc.storage import Storage
from stepwell.cache.arena import lent_name
from stepwell.config import Chosen
from stepwell.engine.apart import wire
from stepwell.engine.apart.process import Gone, Process
from stepwell.engine.apart.wire import StorageError, Verb, Word
from stepwell.engine.making import Place, where
from stepwell.engine.spawn import recipe_of
from stepwell.engine.spawned import error_of
from stepwell.errors import PluginError
from stepwell.types import ArenaView, Failed, PageKey, PageResult, PageViews, StoredPage

T = TypeVar("T")

NOT_SHARED = "cannot have a process of its own, since the host tier's memory cannot be shared on this machine"
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
AGAIN_S = 5.0
"""How long a further process may take to be ready, unless the first one took long: one that hangs is started anew."""
CALM_S = 60.0
"""A process that has run for so long is not held responsible for those before it."""
CLOSE_S = 10.0
"""How long closing a storage may take; some clients need seconds to say goodbye to their server."""
WATCH_S = 0.25


class Lost(StorageError):
    """There is no process to answer, or it ended before it did."""


class ApartStorage(Storage):
    """Passes calls on to a process that has the chosen storage."""

    def __init__(self, choice: Chosen, place: Place, *, limit_s: float) -> None:
        """Start the process and wait until it has made its storage. Raises what that raises, with the same text.

        `limit_s`: a call that takes longer ends the process.
        """
        self._where = where(choice)
        self._name = place.name
        self._limit_s = limit_s
        self._log = logging.getLogger(f"stepwell.{place.name}")
        self._recipe = recipe_of(choice, place, "set tiers.own_process = false")
        self._arena: ArenaView | None = None
        self._named = False
        self._process: Process | None = None
        """The process that can be asked; None while there is none."""
        self._starting: Process | None = None
        self._lock = threading.Lock()
        self._nudge = threading.Event()
        self._started = threading.Event()
        self._closed = False
        self._error: Exception | None = None
        self._patience: tuple[float, ...] = ()
        """Seconds in which a process has to be ready, once one was."""
        self.restarts = 0
        """Processes after the first that came up."""
        self.stuck = 0
        """Processes that were killed over a call that did not return."""
        # The one thread that starts processes, since a process ends with the thread that started it.
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="stepwell.storage.keeper")
        self._keeper.start()
        while not self._started.wait(0.5):  # in pieces, so that Ctrl-C is heard
            pass
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int | None:
        """Of the process that can be asked, where there is one."""
        process = self._process
        return None if process is None else process.pid

    def values(self) -> dict[str, float]:
        """Counters and gauges by name, for metrics."""
        up = float(self._process is not None)
        return {"process_up": up, "process_restarts": float(self.restarts), "process_stuck": float(self.stuck)}

    # --- a Storage -----------------------------------------------------------------------------------------------

    def attach(self, arena: ArenaView) -> None:
        if arena.fd < 0:
            raise PluginError(f"{self._where} {NOT_SHARED}: set tiers.own_process = false")
        self._arena, self._named = arena, bool(arena.name)
        try:
            self._there().attach(arena, arena.name)
        except Gone as how:
            self._arena = None
            raise PluginError(
                f"{self._where}: its process {how}, so it cannot register the host tier's memory"
            ) from None
        except BaseException:
            self._arena = None
            raise

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        return self._ask(lambda count, body: list(map(bool, body[:count])), Verb.CONTAINS, len(keys), wire.joined(keys))

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        return self._move(Verb.READ, keys, into)

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        return self._move(Verb.WRITE, keys, pages)

    def delete(self, keys: Sequence[PageKey]) -> None:
        self._ask(lambda count, body: None, Verb.DELETE, len(keys), wire.joined(keys))

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        try:
            process = self._there()
            line = process.take()
            try:
                verb = Verb.SCAN
                while (answer := process.ask(line, self._limit_s, verb, 0, 0))[0] != Word.END:
                    if answer[0] == Word.ERROR:
                        raise error_of(answer[2], StorageError)
                    yield wire.unlisted(answer[2])
                    verb = Verb.NEXT
            finally:
                line.close()  # the other end drops the rest of the list with it
        except Gone as how:
            self._nudge.set()
            raise Lost(f"its process {how}") from None

    def close(self) -> None:
        process = self._last()
        try:
            if process is not None:
                process.close(CLOSE_S)
        finally:
            self._nudge.set()
            self._keeper.join(CLOSE_S)

    def end(self) -> None:
        """Instead of `close`, where calls do not return: they do now, since the process is killed."""
        process = self._last()
        if process is not None:
            process.kill()

    def _last(self) -> Process | None:
        """Start no further process; answers the one that can be asked, and nobody can from now on."""
        with self._lock:
            self._closed = True
            process, self._process, starting = self._process, None, self._starting
        self._nudge.set()
        if starting is not None:
            starting.kill()
        return process

    # --- one call ------------------------------------------------------------------------------------------------

    def _move(self, verb: Verb, keys: Sequence[PageKey], views: PageViews) -> list[PageResult]:
        arena = self._arena
        assert arena is not None, "attach comes before any other call"
        places = wire.located(views, arena)
        segments = len(views.sizes)
        try:
            return self._ask(wire.decoded, verb, len(keys), wire.joined(keys), *places, segments=segments)
        except Lost as how:
            return [Failed(str(how))] * len(keys)

    def _ask(
        self, decode: Callable[[int, memoryview], T], verb: Verb, count: int, *parts: bytes, segments: int = 0
    ) -> T:
        """One question. Raises what the storage raised, Lost where there is or remains no process to answer it."""
        try:
            process = self._there()
            line = process.take()
            try:
                word, entries, body = process.ask(line, self._limit_s, verb, count, segments, *parts)
                error = error_of(body, StorageError) if word == Word.ERROR else None
                answer = None if error else decode(entries, body)
            except BaseException:
                line.close()
                raise
        except Gone as how:
            self._nudge.set()
            raise Lost(f"its process {how}") from None
        process.give(line)
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]

    def _there(self) -> Process:
        process = self._process
        if process is None:
            raise Gone("is closed" if self._closed else "is being started again")
        return process

    # --- the keeper ----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Start a process, watch it, and when it is dead start the next."""
        pause_s = FIRST_PAUSE_S
        while not self._closed:
            began = time.monotonic()
            try:
                process = self._raise_one()
            except Exception as error:
                if not self._started.is_set():
                    self._error = error
                    return self._started.set()
                if self._closed:
                    return None
                self._log.warning("storage's process cannot be started again: %s", error)
            else:
                self.restarts += self._started.is_set()
                self._patience = self._patience or (max(AGAIN_S, round(5 * (time.monotonic() - began), 1)),)
                self._started.set()
                self._watch(process)
            if time.monotonic() - began > CALM_S:
                pause_s = FIRST_PAUSE_S
            self._rest(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _raise_one(self) -> Process:
        """A process that can be asked. Raises what its storage raised, PluginError where the process ended instead."""
        process = Process(self._name, self._recipe)
        with self._lock:
            self._starting = process
        try:
            if self._closed:  # before `_starting` was there to be killed
                raise Gone("is closed")
            process.make(*self._patience)
            arena = self._arena
            if arena is not None:
                with lent_name(arena.fd) if self._named else nullcontext("") as name:
                    process.attach(arena, name)
            with self._lock:
                if self._closed:
                    raise Gone("is closed")
                self._process = process
        except Gone as how:
            process.kill()
            raise PluginError(f"{self._where}: its process {how}") from None
        except BaseException as error:
            process.kill()
            if isinstance(error, StorageError):
                raise PluginError(f"{self._where}: in its own process: {error}") from None
            raise
        finally:
            self._starting = None
        return process

    def _watch(self, process: Process) -> None:
        """Until it is dead, by whatever cause: it would not outlive this thread."""
        while process.alive:
            self._nudge.wait(min(WATCH_S, self._limit_s / 4))
            self._nudge.clear()
            if process.overdue(time.monotonic()) and not self._closed:
                self.stuck += 1
                self._log.warning("storage: a call has not returned for %g s; its process is killed", self._limit_s)
                process.kill()
        if self._closed:
            return
        with self._lock:
            self._process = None
        self._log.warning("storage's process %s; another is started in its place", process.kill())

    def _rest(self, seconds: float) -> None:
        """Wait, unless it is over."""
        until = time.monotonic() + seconds
        while not self._closed and (left := until - time.monotonic()) > 0:
            self._nudge.wait(left)
            self._nudge.clear()
