"""Two storages as one: `mirror` keeps every page twice, `tiered` keeps a fast copy in front of a large store.

    [storage]
    use = "tiered"
    [storage.fast]
    use = "file"
    path = "/nvme/pages"
    [storage.large]
    use = "redis"
    url = "redis://cache:6379"

Parts nest. Each has a breaker of its own, so that one that fails costs nothing but its own pages.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Literal

import numpy as np

from stepwell.abc.storage import Storage
from stepwell.engine.counting import counted
from stepwell.engine.guard import Guard, IoLimits
from stepwell.errors import ConfigError, PluginError, StepwellError
from stepwell.offers import Context, Part, vars_of
from stepwell.types import DONE, MISSING, ArenaView, Done, Failed, Missing, PageKey, PageResult, PageViews, StoredPage

WRITERS = 8
"""Writes to the second store at once, one for each call that a caller may have under way."""
UNCOUNTED = ("bytes_read", "bytes_written", "late", "late_now", "missing", "retries")
"""What only the guard in front of the pair counts."""


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """The `[storage]` table when `use = "mirror"`."""

    first: Part[Storage]
    """The store that is read: `[storage.first]`."""
    second: Part[Storage]
    """The store that is read where the first has not the page, or fails: `[storage.second]`."""
    copies: Literal["one", "both"] = "one"
    """How many stores must have taken a page for it to count as stored. With `one` a page may have no second copy
    while a store is down; the write is not repeated when it is back, but a read repairs it."""
    repair: bool = True
    """Whether a page that only the second store had is written to the first when it is read."""


@dataclass(frozen=True, slots=True)
class TieredConfig:
    """The `[storage]` table when `use = "tiered"`."""

    fast: Part[Storage]
    """The store that is read first, and may be small: `[storage.fast]`."""
    large: Part[Storage]
    """The store behind it: `[storage.large]`."""
    write: Literal["both", "large"] = "both"
    """Where new pages go. With `large` the fast store gets only what is read again."""
    promote: bool = True
    """Whether a page that came from the large store is written to the fast one."""


def mirror(config: MirrorConfig, context: Context) -> Storage:
    """Two stores with the same pages."""
    pair = _made((("first", config.first), ("second", config.second)), context)
    return Pair(*pair, needed=2 if config.copies == "both" else 1, to_first=True, copy_back=config.repair)


def tiered(config: TieredConfig, context: Context) -> Storage:
    """A fast store in front of a large one."""
    pair = _made((("fast", config.fast), ("large", config.large)), context)
    return Pair(*pair, needed=1, to_first=config.write == "both", copy_back=config.promote)


def _made(parts: Sequence[tuple[str, Part[Storage]]], context: Context) -> tuple[Member, Member]:
    """Both members, or neither."""
    (name, one), (other, two) = parts
    first = Member(name, one, context)
    try:
        return first, Member(other, two, context)
    except BaseException:
        first.storage.close()
        raise


class Member:
    """One store of a pair, behind a guard of its own: its calls never raise, and pause when it keeps failing."""

    def __init__(self, name: str, part: Part[Storage], context: Context) -> None:
        self._name, self._part = name, part
        with self._placed():
            self.storage = part.make(context)
        self._guard = Guard(IoLimits(), late=_nothing, back=_nothing, name=f"storage.{name}")

    def attach(self, arena: ArenaView) -> None:
        """As `Storage.attach`."""
        with self._placed():
            self.storage.attach(arena)

    def values(self) -> dict[str, float]:
        """Counters and gauges by the name of the part, of its own parts too."""
        values = {name: value for name, value in self._guard.values().items() if name not in UNCOUNTED}
        values |= counted(self.storage)
        return {f"{self._name}_{name}": value for name, value in values.items()}

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        """Which keys it says it has; none where it cannot say."""

        def ask() -> list[PageResult]:
            return [DONE if there else MISSING for there in self.storage.contains(keys)]

        self._guard.add(queries=1)
        return [result is DONE for result in self._guard.call(ask, len(keys), reading=True)]

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        """As `Storage.read`."""
        results = self._guard.call(lambda: self.storage.read(keys, into), len(keys), reading=True)
        self._guard.add(reads=1, pages_read=sum(isinstance(result, Done) for result in results))
        return results

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        """As `Storage.write`."""
        results = self._guard.call(lambda: self.storage.write(keys, pages), len(keys), reading=False)
        self._guard.add(writes=1, pages_written=sum(isinstance(result, Done) for result in results))
        return results

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """What is raised names settings as if the part were the whole storage; say where they are written."""
        keys = "|".join(["use", *(vars_of(self._part.settings) if is_dataclass(self._part.settings) else ())])
        try:
            yield
        except StepwellError as error:
            text = re.sub(rf"(?<![\w./-])storage\.(?=({keys})\b)", f"storage.{self._name}.", str(error))
            if text == str(error):
                raise
            raise (ConfigError if isinstance(error, ConfigError) else PluginError)(text) from error
        except Exception as error:
            where = f"storage.{self._name}.use = {self._part.offer.name!r}"
            raise PluginError(f"{where}: {type(error).__name__}: {error}") from error


class Deletes:
    """Keeps a copy back from bringing back what was deleted meanwhile."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._begun = self._ended = self._copies = 0

    def mark(self) -> int:
        """A time to be told to `none_since`: before a page is read that may be copied."""
        with self._change:
            return self._begun if self._begun == self._ended else -1

    @contextmanager
    def none_since(self, mark: int) -> Iterator[bool]:
        """Whether no delete was under way at `mark` or has begun since; one that begins now waits for the block."""
        with self._change:
            none = self._begun == mark
            self._copies += none
        try:
            yield none
        finally:
            with self._change:
                self._copies -= none
                self._change.notify_all()

    @contextmanager
    def deleting(self) -> Iterator[Callable[[], bool]]:
        """A delete. What it gives waits for copies that began before, and says whether there were any."""
        with self._change:
            self._begun += 1
            before = self._copies > 0

        def waited() -> bool:
            with self._change:
                self._change.wait_for(lambda: not self._copies)
            return before

        try:
            yield waited
        finally:
            with self._change:
                self._ended += 1


class Pair(Storage):
    """Two stores: reads go to the first and then to the second, writes to both at once."""

    def __init__(self, first: Member, second: Member, *, needed: int, to_first: bool, copy_back: bool) -> None:
        """`needed` stores must take a page; `to_first`: new pages go there too; `copy_back`: from second to first."""
        self._first, self._second = first, second
        self._needed, self._to_first, self._copy_back = needed, to_first, copy_back
        self._log = logging.getLogger("stepwell.storage")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="stepwell.storage.pair")
        self._deletes = Deletes()

    def attach(self, arena: ArenaView) -> None:
        self._first.attach(arena)
        self._second.attach(arena)

    def values(self) -> dict[str, float]:
        """How either part does, for metrics."""
        return self._first.values() | self._second.values()

    def contains(self, keys: Sequence[PageKey]) -> list[bool]:
        held = self._first.contains(keys)
        left = [at for at, there in enumerate(held) if not there]
        if left:
            for at, there in zip(left, self._second.contains([keys[at] for at in left]), strict=True):
                held[at] = there
        return held

    def read(self, keys: Sequence[PageKey], into: PageViews) -> list[PageResult]:
        mark = self._deletes.mark()
        results = self._first.read(keys, into)
        left = [at for at, result in enumerate(results) if not isinstance(result, Done)]
        if not left:
            return results
        lacking = [at for at in left if isinstance(results[at], Missing)]
        for at, result in zip(left, self._second.read(*_some(keys, into, left)), strict=True):
            # A page that the first could not read may be there still: missing would be a lie.
            if not (isinstance(result, Missing) and isinstance(results[at], Failed)):
                results[at] = result
        found = [at for at in lacking if isinstance(results[at], Done)]
        if found and self._copy_back:
            with self._deletes.none_since(mark) as none:
                if none:
                    self._first.write(*_some(keys, into, found))
        return results

    def write(self, keys: Sequence[PageKey], pages: PageViews) -> list[PageResult]:
        if not self._to_first:
            return self._second.write(keys, pages)
        behind = self._writers.submit(self._second.write, keys, pages)
        first = self._first.write(keys, pages)
        second = behind.result()
        return [self._both(*results) for results in zip(first, second, strict=True)]

    def _both(self, first: PageResult, second: PageResult) -> PageResult:
        taken = isinstance(first, Done) + isinstance(second, Done)
        if taken >= self._needed:
            return DONE
        return second if isinstance(first, Done) else first

    def delete(self, keys: Sequence[PageKey]) -> None:
        with self._deletes.deleting() as waited:
            self._each(lambda member: member.storage.delete(keys))
            if waited():
                self._first.storage.delete(keys)

    def scan(self) -> Iterator[Sequence[StoredPage]]:
        seen: set[PageKey] = set()
        for batch in self._first.storage.scan():
            seen.update(page.key for page in batch)
            yield batch
        for batch in self._second.storage.scan():
            more = [page for page in batch if page.key not in seen]
            if more:
                yield more

    def close(self) -> None:
        self._writers.shutdown(wait=True)
        self._each(lambda member: member.storage.close())

    def _each(self, call: Callable[[Member], None]) -> None:
        """Both, whatever the first does; its error is raised afterwards."""
        try:
            call(self._first)
        finally:
            call(self._second)


def _some(keys: Sequence[PageKey], views: PageViews, which: Sequence[int]) -> tuple[list[PageKey], PageViews]:
    return [keys[at] for at in which], views.take(np.array(which))


def _nothing() -> None:
    """Calls of a pair have no deadline of their own: who called the pair has one."""
