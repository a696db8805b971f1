"""Policies held to their contracts: what one does wrong costs hits, never an answer and never the engine.

A wrapper passes calls on. Where the policy raises, or answers what cannot be used, a safe answer is given in its place,
and that is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import index
from typing import Protocol, SupportsIndex, cast

from stepwell.abc.evict import EvictionPolicy, Segment
from stepwell.abc.retain import RetentionPolicy
from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.said import said

DIFFERENT = 20
"""So many different faults are said; all are counted."""
STRANGERS = 100
"""A policy that proposes more than this that is no candidate is not read on."""


class Faults:
    """Takes what policies did wrong: `also` counts it, the log says each thing once."""

    def __init__(self) -> None:
        self.also: Callable[[str], None] | None = None
        self._log = logging.getLogger("stepwell.policies")
        self._said: set[str] = set()

    def __call__(self, what: str) -> None:
        if self.also is not None:
            self.also(what)
        if what not in self._said and len(self._said) < DIFFERENT:
            self._said.add(what)
            self._log.warning("%s; this is said once, and counted", what)


def _whole(value: object) -> int | None:
    try:
        return index(cast("SupportsIndex", value))
    except Exception:
        return None


class SafeWrite(WritePolicy):
    """A decision that is none is LATER; a reserve that is no share is none."""

    def __init__(self, inner: WritePolicy, fault: Callable[[str], None]) -> None:
        self._inner, self._fault = inner, fault
        share: object = inner.reserve
        good = isinstance(share, int | float) and 0 <= share <= 1
        self.reserve = inner.reserve if good else 0.0
        if not good:
            fault(f"the write policy's reserve is {said(share)}, which is no share from 0 to 1")

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        try:
            decision = self._inner.decide(edge, cause, uses)
        except Exception as error:
            self._fault(f"the write policy raised {said(error)}")
            return Decision.LATER
        if type(decision) is not Decision:
            self._fault(f"the write policy decided {said(decision)}")
            return Decision.LATER
        return decision


class _Along(Protocol):
    def __call__(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]: ...


class SafeRetention(RetentionPolicy):
    """Lengths that are none are left out."""

    along: _Along
    """The base's own where the policy has no other, so that it shows that nobody need ask."""

    def __init__(self, inner: RetentionPolicy, fault: Callable[[str], None]) -> None:
        self._inner, self._fault = inner, fault
        self.along = inner.along if type(inner).along is RetentionPolicy.along else self._held_along

    def keep(self, length: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._lengths(
            lambda: self._inner.keep(length, page, branches), length // page, lambda one: 0 <= one <= length
        )

    def prompted(self, length: int, page: int) -> Sequence[int]:
        return self._lengths(lambda: self._inner.prompted(length, page), length // page, lambda one: 0 <= one <= length)

    def _held_along(self, start: int, end: int, page: int, branches: Sequence[int]) -> Sequence[int]:
        return self._lengths(
            lambda: self._inner.along(start, end, page, branches),
            (end - start) // page,
            lambda one: start < one <= end and one % page == 0,
        )

    def _lengths(self, ask: Callable[[], Iterable[object]], there: int, good: Callable[[int], bool]) -> list[int]:
        """`there`: how many lengths a policy could name; one that names more than twice as many is not read on."""
        most = 2 * (there + STRANGERS)
        try:
            asked = list(islice(ask(), most + 1))
        except Exception as error:
            self._fault(f"the retention policy raised {said(error)}")
            return []
        kept = [whole for one in asked[:most] if (whole := _whole(one)) is not None and good(whole)]
        if len(kept) < len(asked):
            self._fault("the retention policy asked for lengths that are not on the path")
        return kept


class SafeEviction(EvictionPolicy):
    """Proposes what the policy proposes, each candidate once, and those that it keeps back after all others."""

    def __init__(self, inner: EvictionPolicy, fault: Callable[[str], None]) -> None:
        self._inner, self._fault = inner, fault
        self._known: dict[Segment, None] = {}

    def on_insert(self, segment: Segment) -> None:
        self._known[segment] = None
        self._told(self._inner.on_insert, segment)

    def on_hit(self, segment: Segment) -> None:
        self._known[segment] = None
        self._told(self._inner.on_hit, segment)

    def on_remove(self, segment: Segment) -> None:
        self._known.pop(segment, None)
        self._told(self._inner.on_remove, segment)

    def on_expose(self, segment: Segment) -> None:
        self._known[segment] = None
        self._told(self._inner.on_expose, segment)

    def on_split(self, upper: Segment, lower: Segment) -> None:
        try:
            self._inner.on_split(upper, lower)
        except Exception as error:
            self._fault(f"the eviction policy raised {said(error)}")

    def victims(self, pages: int) -> Iterable[Segment]:
        left = pages
        seen: set[Segment] = set()
        for segment in self._proposed(pages):
            if segment in seen:
                self._fault("the eviction policy proposed a segment twice")
                break
            seen.add(segment)
            left -= segment.pages
            yield segment
        if left <= 0:
            return
        kept_back = [segment for segment in self._known if segment not in seen]
        if kept_back:
            self._fault("the eviction policy kept candidates back")
            yield from kept_back

    def _proposed(self, pages: int) -> Iterator[Segment]:
        strangers = 0
        try:
            for segment in self._inner.victims(pages):
                if segment in self._known:
                    yield segment
                    continue
                self._fault("the eviction policy proposed what is no candidate")
                strangers += 1
                if strangers > STRANGERS:
                    return
        except Exception as error:
            self._fault(f"the eviction policy raised {said(error)}")

    def _told(self, tell: Callable[[Segment], None], segment: Segment) -> None:
        try:
            tell(segment)
        except Exception as error:
            self._fault(f"the eviction policy raised {said(error)}")
