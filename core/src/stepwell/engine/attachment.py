"""Which storage is attached, and its change while requests go on.

The serving thread only swaps one for another between two ticks. Whatever may take its time (making a storage, letting
go of one, clearing it) happens on a thread of its own, one action at a time, and tells the serving thread when it is
done. An action that takes too long is answered all the same, and ends in the background.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

from stepwell.abc.storage import Storage
from stepwell.cache.arena import Slotted
from stepwell.engine.actions import Attached, Cleared, Detached, Event
from stepwell.engine.messages import ATTACHED, Control, Reply
from stepwell.engine.page_io import LocalPageIO, PageIO
from stepwell.engine.parts import Parts, StorageInfo, attach_storage, sentence
from stepwell.engine.ranks.storage import RanksStorage
from stepwell.engine.storage_io import StorageIO
from stepwell.engine.wanted import FIRST_PAUSE_S, Wanted

VERBS = ("storage", "storage.attach", "storage.detach", "storage.clear")
MAKE_S = 60.0
"""After so long the caller hears that no storage came of it."""
DRAIN_S = 5.0
"""What is in flight at a detach may take so long; then only calls that hang are left."""
LET_GO_S = 15.0
"""After so long the caller hears of a detach that its storage still hangs."""
MOST_LEFT = 4
"""Storages that hang at which no further one is attached."""
WANTED = "storage_wanted"
"""The value that says whether there is a storage to come that could not be had yet."""
STATES = ("_read_paused", "_write_paused")
"""How values end that only the storage attached now has."""


@dataclass(eq=False)
class _Task:
    """An action under way, and who waits for it."""

    id: int
    verb: str
    until: float
    late: Callable[[], Reply]
    """What is answered when `until` has passed."""


class Attachment:
    """The storage of one loop. All methods are for the serving thread; `post` hands them something to do."""

    def __init__(
        self, parts: Parts, answered: Callable[[Event], None], wake: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._parts, self._answered, self._wake, self._clock = parts, answered, wake, clock
        self._log = logging.getLogger("stepwell.storage")
        self._posted: deque[Callable[[], None]] = deque()
        self._replies: list[Reply] = []
        self._events: list[Event] = []
        self._task: _Task | None = None
        self._threads: list[threading.Thread] = []
        self._left: list[StorageIO] = []
        self._past: dict[str, float] = {}
        self._closed = False
        self.io: StorageIO | None = None
        """What is asked now."""
        self.info: StorageInfo | None = None
        self._wanted: Wanted | None = None
        if parts.arena is not None and parts.info is not None and parts.lacking:
            self._wanted = Wanted(parts.info, parts.lacking, clock() + FIRST_PAUSE_S)
            self._events.append(Detached())  # a cache is made for the storage that the config names
            self._log.warning(
                "the engine runs without its storage %s, which is tried again and again: %s",
                parts.info.use,
                parts.lacking,
            )
        if parts.arena is not None and parts.storage is not None:
            self.info = parts.info or StorageInfo(type(parts.storage).__name__)
            self.io = self._io(parts.storage, parts.arena)

    # --- the loop's side ---------------------------------------------------------------------------------------

    def changes(self) -> list[Event]:
        """What the brain has to know before anything else: the storage that it asks from now on is another."""
        while self._posted:
            self._posted.popleft()()
        events, self._events = self._events, []
        return events

    @property
    def pending(self) -> bool:
        """Whether there is something for `changes` or `answers`."""
        return bool(self._posted or self._events or self._replies)

    def answers(self) -> list[Reply]:
        """Answers that can be given now."""
        replies, self._replies = self._replies, []
        return replies

    def stop_fetch(self, id: int) -> None:
        """Start no further read of a fetch, in whichever storage it is under way."""
        for io in self._all():
            io.stop_fetch(id)

    def watch(self, now: float) -> None:
        """Give up calls whose deadline has passed, and actions that take too long."""
        for io in self._all():
            io.watch(now)
        task = self._task
        if task is not None and now >= task.until:
            self._log.warning("%s takes its time; it goes on in the background", task.verb)
            self._answer(task, task.late)
        wanted = self._wanted
        if wanted is not None and wanted.due(now) and self._task is None and self._room():
            wanted.begin()
            self._run(lambda: self._try(wanted))

    def values(self) -> dict[str, float]:
        """Counters and gauges by name, for metrics; counters go on over all storages that there were."""
        values = dict(self._past)
        for io in self._all():
            _add(values, io.values(), states=io is self.io)
        values[ATTACHED] = float(self.io is not None)
        values[WANTED] = float(self._wanted is not None)
        return values

    def abandon(self, why: str) -> list[Reply]:
        """The engine ends: what is under way will not be answered."""
        left = [*self._replies, *([Reply(self._task.id, error=why)] if self._task else [])]
        self._replies, self._task, self._wanted = [], None, None
        return left

    def close(self, wait_s: float) -> bool:
        """Let go of everything. False where something may still use the arena."""
        self._closed = True
        until = time.monotonic() + wait_s
        more = True
        while more:  # what was being made is let go of by a thread in its turn
            for thread in list(self._threads):
                thread.join(max(0.0, until - time.monotonic()))
            more = bool(self._posted)
            while self._posted:
                self._posted.popleft()()
        settled = self.io.close(wait_s) if self.io is not None else True
        return settled and not any(thread.is_alive() for thread in self._threads)

    # --- actions -----------------------------------------------------------------------------------------------

    def ask(self, control: Control) -> None:
        """Take an action; its answer comes with `answers`, in this turn or a later one."""
        if control.verb == "storage":
            self._replies.append(Reply(control.id, self.shown()))
            return
        if self._task is not None:
            return self._refuse(control, f"{self._task.verb} is under way; ask again when it has ended")
        match control.verb:
            case "storage.attach":
                self._attach(control)
            case "storage.detach":
                self._detach(control)
            case "storage.clear":
                self._clear(control)

    def shown(self) -> dict[str, object]:
        """What is attached, and how it does."""
        values = {name: value for name, value in self.values().items() if name not in (ATTACHED, WANTED)}
        counters = {name.removeprefix("storage_"): value for name, value in values.items()}
        told: dict[str, object] = {"attached": self.io is not None}
        if self.io is not None and self.info is not None:
            told |= {
                "use": self.info.use,
                "capabilities": list(self.info.capabilities),
                "settings": dict(self.info.settings),
                "health": self.io.health(),
            }
        if self._wanted is not None:
            told |= self._wanted.shown()
        under_way = None if self._task is None else self._task.verb
        return told | {"under_way": under_way, "hanging": len(self._left), "counters": counters}

    def _attach(self, control: Control) -> None:
        table = dict(control.given)
        replace = table.pop("replace", False)
        if not isinstance(replace, bool):
            return self._refuse(control, f"replace: {replace!r} is neither true nor false", "config")
        new = self._parts.new_storage
        if self._parts.arena is None or new is None:
            text = "storage needs a host tier; set cache.host_gib or cache.host_pages and start anew"
            return self._refuse(control, text, "config")
        if self.info is not None and not replace:
            text = f"storage {self.info.use!r} is attached; detach it first, or attach with replace = true"
            return self._refuse(control, text)
        if not self._room():
            return self._refuse(control, f"{MOST_LEFT} storages hang and were not let go of yet; restart the engine")
        late = Reply(control.id, error=f"no storage came of it within {MAKE_S:g} s", fault="config")
        task = self._begin(control, MAKE_S, lambda: late)

        def failed(why: str) -> None:
            self._answer(task, lambda: Reply(task.id, error=why, fault="config"))

        self._run(lambda: self._make(lambda: new(table), partial(self._made, task), failed))

    def _make(
        self,
        make: Callable[[], tuple[StorageInfo, Storage]],
        made: Callable[[StorageInfo, StorageIO], None],
        failed: Callable[[str], None],
    ) -> None:
        """On a thread: make a storage and let it reach the arena. Then the serving thread calls one of the others."""
        parts = self._parts
        assert parts.arena is not None
        try:
            info, storage = make()
        except BaseException as error:  # a native client that panics
            return self._post(partial(failed, sentence(error)))
        try:
            attach_storage(storage, parts.arena)
            io = self._io(storage, parts.arena)
        except BaseException as error:
            self._post(partial(failed, sentence(error)))
            return self._discard(storage)
        self._post(partial(made, info, io))

    def _discard(self, storage: Storage) -> None:
        """On a thread: close what nobody came to use."""
        try:
            storage.close()
        except Exception as error:
            self._log.warning("storage failed to close: %s: %s", type(error).__name__, error)

    def _made(self, task: _Task, info: StorageInfo, io: StorageIO) -> None:
        if task is not self._task:  # too late for who asked, or for the engine
            return self._let_go(io, lambda: None)
        old, self.io, self.info, self._wanted = self.io, io, info, None
        self._events += [Detached(), Attached()] if old is not None else [Attached()]
        self._log.info("storage %s is attached", info.use)

        def told() -> Reply:
            return Reply(task.id, self.shown())

        if old is None:
            return self._answer(task, told)
        task.until, task.late = self._clock() + LET_GO_S, told
        self._let_go(old, lambda: self._answer(task, told))

    def _try(self, wanted: Wanted) -> None:
        """On a thread: make the storage that the engine should have."""
        renew = self._parts.renew
        assert renew is not None
        self._make(lambda: (wanted.info, renew()), partial(self._came, wanted), partial(self._stayed_away, wanted))

    def _came(self, wanted: Wanted, info: StorageInfo, io: StorageIO) -> None:
        if wanted is not self._wanted or self._task is not None:  # somebody decided otherwise, or may be about to
            wanted.put_off(self._clock())
            return self._let_go(io, lambda: None)
        self.io, self.info, self._wanted = io, info, None
        self._events.append(Attached())
        self._log.info("storage %s is attached, at attempt %d", info.use, wanted.attempts)

    def _stayed_away(self, wanted: Wanted, why: str) -> None:
        if why != wanted.why:
            self._log.info("storage %s is still away: %s", wanted.info.use, why)
        wanted.failed(self._clock(), why)

    def _detach(self, control: Control) -> None:
        io, info, wanted = self.io, self.info, self._wanted
        if wanted is not None:
            self._wanted = None
            self._log.info("storage %s is not tried again", wanted.info.use)
            ended = {"detached": wanted.info.use, "late_calls": 0, "closed": not wanted.trying}
            return self._replies.append(Reply(control.id, ended))
        if io is None or info is None:
            return self._refuse(control, "no storage is attached")

        def told() -> Reply:
            return Reply(control.id, {"detached": info.use, "late_calls": io.late, "closed": io not in self._left})

        task = self._begin(control, LET_GO_S, told)
        self.io = self.info = None
        self._events.append(Detached())
        self._log.info("storage %s is detached", info.use)
        self._let_go(io, lambda: self._answer(task, told))

    def _clear(self, control: Control) -> None:
        io, info = self.io, self.info
        if io is None or info is None:
            return self._refuse(control, "no storage is attached")
        if not info.lists:
            return self._refuse(control, f"storage {info.use!r} cannot list its pages, so they cannot be cleared")
        task = self._begin(control, inf, lambda: Reply(control.id))
        self._run(lambda: self._forget_all(task, io))

    def _forget_all(self, task: _Task, io: StorageIO) -> None:
        """On a thread: delete page by page. Also what was deleted before a fault is gone."""

        def hangs() -> None:
            self._post(lambda: self._cleared(task, Reply(task.id, error="storage does not answer; it is half cleared")))

        try:
            count = io.clear(lambda: task is not self._task, hangs)
            reply = Reply(task.id, {"cleared": count})
        except Exception as error:
            reply = Reply(task.id, error=str(error))
        self._post(lambda: self._cleared(task, reply))

    def _cleared(self, task: _Task, reply: Reply) -> None:
        self._events.append(Cleared())
        self._answer(task, lambda: reply)

    def _io(self, storage: Storage, arena: Slotted) -> StorageIO:
        groups = self._parts.groups
        pages: PageIO = LocalPageIO(storage, arena, groups)
        if isinstance(storage, RanksStorage):
            pages = storage.pages(groups)
        sizes = [region.stride for region in arena.regions]
        return StorageIO(storage, pages, sizes, done=self._answered, limits=self._parts.limits, clock=self._clock)

    # --- within ------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[StorageIO]:
        if self.io is not None:
            yield self.io
        yield from self._left

    def _let_go(self, io: StorageIO, then: Callable[[], None]) -> None:
        """Take leave of a storage in the background, however long it hangs; `then` is called here."""
        self._left.append(io)

        def gone() -> None:
            self._left.remove(io)
            _add(self._past, io.values(), states=False)
            then()

        def leave() -> None:
            io.let_go(DRAIN_S)
            self._post(gone)

        self._run(leave)

    def _begin(self, control: Control, patience_s: float, late: Callable[[], Reply]) -> _Task:
        self._task = _Task(control.id, control.verb, self._clock() + patience_s, late)
        return self._task

    def _refuse(self, control: Control, why: str, fault: str = "conflict") -> None:
        self._replies.append(Reply(control.id, error=why, fault=fault))

    def _answer(self, task: _Task, told: Callable[[], Reply]) -> None:
        """Answer a task, once; the next may begin."""
        if task is self._task:
            self._task = None
            self._replies.append(told())

    def _room(self) -> bool:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(self._threads) < MOST_LEFT

    def _run(self, work: Callable[[], None]) -> None:
        self._room()
        thread = threading.Thread(target=work, name="stepwell-storage-admin", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _post(self, work: Callable[[], None]) -> None:
        self._posted.append(work)
        self._wake()


def _add(values: dict[str, float], more: Mapping[str, float], *, states: bool) -> None:
    for name, value in more.items():
        if states or not name.endswith(STATES):
            values[name] = values.get(name, 0.0) + value
