"""All ranks of a model as one runner: says every plan to each of them, and makes their answers one.

Whoever uses it does not know that there are ranks. A thread hears them; what it hears last is kept for `poll`. Ranks
that stop being one (one ended, hangs, answers nonsense, or did something else than the others) end the runner, with
one sentence that says which and why: their pages do not belong together any more. The others are killed at once.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from stepwell.abc.runner import Runner, Step, StepPlan, StepResult
from stepwell.cache.arena import Region, seen_by
from stepwell.cache.elsewhere import Elsewhere
from stepwell.engine.ranks import wire
from stepwell.engine.ranks.calls import Calls
from stepwell.engine.ranks.combine import Expected, Split, agreed, combined, conjunction, lacking, seeded
from stepwell.engine.ranks.link import SLOW_BEATS_S, Link, complaint_of, failure, hear
from stepwell.engine.ranks.wire import Made, Nonsense, Opening, OwnPinning, Pinning, Word, decoded
from stepwell.errors import PluginError
from stepwell.types import ArenaView

TICK_S = 0.25
PAUSE_S = 2.0
"""A tick that comes so late was held up itself, and says nothing about ranks."""
SILENT_S = 10.0
"""A rank that is not heard for so long is stopped, or its interpreter is held up."""
STARTING_SILENT_S = 120.0
"""The same before it is ready: whatever loads weights may hold an interpreter up for long."""
BLAME_S = 0.5
"""How long to listen on, when a rank says that it ended, for the death of another that may be why."""
CLOSE_S = 10.0


class RanksStep(Step):
    """A step that all ranks are in."""

    def __init__(self, runner: RanksRunner, index: int) -> None:
        self._runner = runner
        self.index = index
        """How many were launched before it."""
        self.lacking = False
        """Whether a load of it failed."""
        self.result: StepResult | None = None

    def poll(self) -> StepResult | None:
        if self.result is None:
            self._runner.check()
        elif self.lacking:
            self.lacking = False
            self._runner.told_of_failed_load()
        return self.result


class RanksRunner(Runner):
    """Stands for all ranks. As every runner for one thread; those that it starts end with that thread."""

    def __init__(
        self,
        start: Callable[[], list[Link]],
        *,
        timeout_s: float,
        start_s: float,
        own: bool = False,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Start all ranks and wait until each has its part. Raises what that raises on one of them.

        `own`: each rank has host memory for its own parts. `after()` is called once all ranks are gone.
        """
        self._timeout_s, self._start_s, self._own, self._after = timeout_s, start_s, own, after
        self._log = logging.getLogger("stepwell.ranks")
        self._wake: Callable[[], None] = lambda: None
        self._verdict: Exception | None = None
        self._suspect: tuple[float, Exception] | None = None
        self._news = threading.Condition()
        self._replies: dict[int, bytes] = {}
        self._deaf: set[int] = set()
        """Ranks that say nothing any more."""
        self._flying: deque[tuple[Expected, RanksStep]] = deque()
        self._late: dict[int, tuple[range, dict[int, bytes]]] = {}
        self._saved: dict[int, tuple[bool, ...]] = {}
        self._launched = 0
        self._lacking = 0
        """Steps whose loads failed and whose results nobody has seen."""
        self._sure_from = 0
        """From this step on plans were made by somebody who knew of them."""
        self._serving, self._starting = False, True
        self._closing = self._closed = False
        self.links = start()
        self._ticked = time.monotonic()
        for link in self.links:
            link.heard_at = self._ticked
        self.calls = Calls(self.links)
        """To the storages of ranks with host memory of their own."""
        self._reader = threading.Thread(target=self._hear, daemon=True, name="stepwell.ranks")
        self._reader.start()
        try:
            bodies = self._all(Word.MADE, start_s, "was not ready")
            made = agreed([_made(link, body) for link, body in zip(self.links, bodies, strict=True)])
        except Split as error:
            self._end(why := PluginError(str(error)))
            self.close()
            raise why from None
        except BaseException:
            self.close()
            raise
        self._starting = False
        self.model, self.groups, self.preferred_chunk = made.model, made.groups, made.preferred_chunk
        self.depth, self.max_steps, self.late_saves = made.depth, made.max_steps, made.late_saves
        self._budget = made.budget

    # --- a runner ------------------------------------------------------------------------------------------------

    def open(self, page_size: int, pages: Mapping[str, int], slots: int, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._say(Word.OPEN, wire.encode(Opening(page_size, dict(pages), slots)))
        self._all(Word.DONE, self._start_s, "did not allocate its pools")
        self._begin()

    def pin(self, arena: ArenaView) -> None:
        self._serving = False  # registering memory may hold an interpreter up
        if isinstance(arena, Elsewhere):
            shards = tuple(group.shards for group in arena.groups)
            own = OwnPinning(arena.page_size, arena.pages, shards, arena.setting, arena.named)
            self._say(Word.PIN_OWN, wire.encode(own))
        else:
            self._share(arena)
        self._all(Word.DONE, self._start_s, "did not reach the host tier's memory")
        self._begin()

    def launch(self, plan: StepPlan) -> Step:
        self.check()
        plan = seeded(plan)
        expected, step = Expected.of(plan, self.groups, len(self.links), own=self._own), RanksStep(self, self._launched)
        self._launched += 1
        body = wire.packed(plan)
        if self.late_saves:
            with self._news:
                self._late.update({id: (who, {}) for id, (_, who) in expected.saves.items()})
        self._flying.append((expected, step))
        now = time.monotonic()
        for link in self.links:
            link.expect(expected, self.late_saves, now)
            self._tell(link, Word.PLAN, body)
        return step

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        self.check()
        with self._news:
            saved, self._saved = self._saved, {}
        return saved

    def budget(self) -> int | None:
        return self._budget

    def values(self) -> Mapping[str, float]:
        return self.calls.values(wire.RUNNER)

    def close(self) -> None:
        if self._closed:
            return
        self._serving, self._closing = False, True
        if self._verdict is None:
            self._say(Word.CLOSE)
            try:
                self._all(Word.DONE, CLOSE_S, "did not end")
            except Exception as error:
                self._log.warning("%s", error)
        self._closed = True
        for link in self.links:
            link.kill()
        self.calls.end(PluginError("the ranks were ended"))
        self._reader.join(CLOSE_S)
        for link in self.links:
            link.stream.close()
        self._after()

    def told_of_failed_load(self) -> None:
        """A step whose load failed is seen now: what is launched from here on does without it."""
        with self._news:
            self._lacking -= 1
            self._sure_from = self._launched

    def check(self) -> None:
        """Raises why the ranks are no runner any more."""
        if self._verdict is not None:
            raise self._verdict

    def _share(self, arena: ArenaView) -> None:
        if arena.fd < 0:
            raise PluginError("several ranks need the host tier's memory shared, which this machine cannot do")
        regions = [Region(*arena.slots(group), *arena.parts(group)) for group in range(len(self.groups))]
        for link in self.links:
            pinning = Pinning(arena.nbytes, seen_by(link.rank, self.groups, regions))
            self._tell(link, Word.PIN, wire.encode(pinning), arena.fd)

    # --- saying --------------------------------------------------------------------------------------------------

    def _say(self, word: Word, body: bytes = b"") -> None:
        for link in self.links:
            self._tell(link, word, body)

    def _tell(self, link: Link, word: Word, body: bytes = b"", fd: int = -1) -> None:
        with suppress(OSError):  # it is gone; who hears it knows how, and ends us
            link.stream.say(word, body, fd)

    def _all(self, word: Word, wait_s: float, failing: str) -> list[bytes]:
        """What each rank answers, in rank order. Raises why one does not."""
        until = time.monotonic() + wait_s
        with self._news:
            while len(self._replies) < len(self.links):
                if self._verdict is not None:
                    raise self._verdict
                if not self._news.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    self._verdict = PluginError(f"{self._awaited().name} {failing} within {wait_s:g} s")
            replies = [self._replies[link.rank] for link in self.links]
            self._replies.clear()
        return replies

    def _awaited(self) -> Link:
        """Whom all wait for: who is not heard any more, since others may wait for it, too; else the first."""
        late, now = [link for link in self.links if link.rank not in self._replies], time.monotonic()
        return next((link for link in late if link.silent_s(now) > SLOW_BEATS_S), late[0])

    def _begin(self) -> None:
        now = time.monotonic()
        for link in self.links:
            link.heard_at = link.free_at = now
        self._serving = True

    # --- hearing -------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Until it is over."""
        poll = select.poll()
        links = {link.stream.fileno(): link for link in self.links}
        for fd in links:
            poll.register(fd, select.POLLIN)
        while not self._closed and self._verdict is None:
            for fd, _ in poll.poll(TICK_S * 1000):
                link = links[fd]
                try:
                    self._take(link)
                except (EOFError, OSError):
                    poll.unregister(fd)
                    self._lost(link)
                except Nonsense as what:
                    self._end(PluginError(f"{link.name} answered nonsense{link.at()}: {what}"))
                except Split as what:
                    self._end(PluginError(str(what)))
                except Exception as error:
                    self._end(PluginError(f"{link.name}: {type(error).__name__}: {error}"))
            self._watch(time.monotonic())

    def _take(self, link: Link) -> None:
        """What one rank said."""
        now = time.monotonic()
        link.heard_at = now
        for word, body in hear(link):
            match word:
                case Word.RESULT:
                    link.result(body, now)
                    self._combine()
                case Word.SAVED:
                    self._ended(link, link.saved(body, now))
                case Word.MADE | Word.DONE:
                    with self._news:
                        self._replies[link.rank] = body
                        self._news.notify_all()
                case Word.REPLY:
                    self.calls.replied(link.rank, body)
                case Word.BEAT:
                    self.calls.counted(link.rank, body)
                case Word.FAILED:
                    self._deaf.add(link.rank)
                    self._suspect = self._suspect or (now + BLAME_S, failure(link, complaint_of(body)))
                case _:
                    raise Nonsense(f"word {word}")

    def _combine(self) -> None:
        """Make steps of answers that are there from all ranks."""
        while self._flying and all(link.answers for link in self.links):
            expected, step = self._flying.popleft()
            answers = [link.answers.popleft() for link in self.links]
            with self._news:
                doubtful = self._lacking > 0 or step.index < self._sure_from
                result = combined(expected, answers, late_saves=self.late_saves, doubtful=doubtful)
                if result.error is None and lacking(expected, result.copies):
                    self._lacking += 1
                    step.lacking = True
                step.result = result
            self._wake()

    def _ended(self, link: Link, saves: Mapping[int, bytes]) -> None:
        with self._news:
            for id, pages in saves.items():
                who, answers = self._late[id]
                answers[link.rank] = pages
                if len(answers) == len(who):
                    del self._late[id]
                    self._saved[id] = conjunction(list(answers.values()))
        self._wake()

    def _lost(self, link: Link) -> None:
        """Its connection ended."""
        if self._closing:
            with self._news:
                self._replies[link.rank] = b""
                self._news.notify_all()
        elif link.rank not in self._deaf:
            when = link.at() or ("" if self._serving else " before it was ready")
            self._end(PluginError(f"{link.name} {link.gone()}{when}"))

    def _watch(self, now: float) -> None:
        """Whether a rank takes too long."""
        late_s, self._ticked = now - self._ticked, now
        if late_s > PAUSE_S:  # this process was stopped, too
            for link in self.links:
                link.heard_at = link.free_at = link.saved_at = now
        if self._suspect is not None and now >= self._suspect[0]:
            return self._end(self._suspect[1])
        silent = max(self.links, key=lambda link: link.silent_s(now))
        silent_s = silent.silent_s(now)
        if self._starting and silent_s > STARTING_SILENT_S:
            return self._end(PluginError(f"{silent.name} has not been heard for {silent_s:.1f} s before it was ready"))
        if not self._serving or self._verdict is not None:
            return None
        if silent_s > min(SILENT_S, max(self._timeout_s, SLOW_BEATS_S)):
            return self._end(PluginError(f"{silent.name} has not been heard for {silent_s:.1f} s{silent.at()}"))
        late = [(link, what) for link in self.links if (what := link.overdue(now, self._timeout_s))]
        if late and silent_s > SLOW_BEATS_S:
            return self._end(PluginError(f"{silent.name} has not been heard for {silent_s:.1f} s{silent.at()}"))
        if late:
            names = " and ".join(link.name for link, _ in late)
            return self._end(PluginError(f"{names} {late[0][1]}"))
        return None

    def _end(self, why: Exception) -> None:
        """No further step: say why, and kill all."""
        with self._news:
            self._verdict = self._verdict or why
            self._news.notify_all()
        self._wake()
        for link in self.links:
            link.kill()
        self.calls.end(self._verdict)


def _made(link: Link, body: bytes) -> Made:
    try:
        return decoded(body, Made)
    except Nonsense as what:
        raise Split(f"{link.name} answered nonsense before it was ready: {what}") from None
