"""Requests with one routing key together: a step then reads fewer experts, or one adapter.

A key that runs goes first, so who leaves a batch is followed by one of its kind, and the keys of a batch get fewer by
themselves. Keys that do not run wait for that, but not for ever: past `max_wait_s` the oldest request of such a key
goes before all of its priority, and core's bound on passes holds as for every order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, takewhile
from operator import itemgetter
from typing import Literal, cast

from stepwell import Context, Groups, RankedPolicy, ScheduleView, WaitingView
from stepwell.settings import at_least
from stepwell_route_key.lines import Lines

Name = tuple[int, str | None, int]
"""A group: priority, routing key, and cached units where those count."""


@dataclass(frozen=True, slots=True)
class RouteKeyConfig:
    """The `[schedule]` table when `use = "route-key"`."""

    max_passes: int = 1024
    """A request that later ones have passed this often goes first. 0 is arrival order."""
    max_wait_s: float = 60.0
    """The oldest request of a key that does not run goes first once it has waited so many seconds."""
    max_keys: int = 0
    """While so many keys run, requests of further keys are held back, for `max_wait_s` at most. 0: never."""
    within: Literal["arrival", "cached"] = "arrival"
    """What decides among the requests of one key: who came first, or of whom most is cached."""
    granularity: int = 256
    """With `within = "cached"`, cached tokens are compared in whole units of so many."""

    def __post_init__(self) -> None:
        for name in ("max_passes", "max_wait_s", "max_keys"):
            at_least(name, getattr(self, name), 0)
        at_least("granularity", self.granularity, 1)


class RouteKey(RankedPolicy):
    """By priority; then keys that run, those of most running requests first; then keys by their oldest request.

    A request without a key is a key of its own, and one that never runs: it stands by its arrival among the latter.
    """

    def __init__(self, config: RouteKeyConfig, context: Context | None) -> None:
        self.max_passes = config.max_passes
        self.probes = config.within == "cached"
        self._unit = config.granularity
        self._max_wait = config.max_wait_s
        self._max_keys = config.max_keys
        self._groups: Groups | None = None
        """Those of which `_lines` keeps the lines."""
        self._lines: dict[int, Lines] = {}
        """By priority."""

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[Name, float]:
        key = request.routing_key or None
        units = view.cached(request) // self._unit if self.probes and key else 0
        return (request.priority, key, units), 0.0

    def merge(self, groups: Groups, view: ScheduleView) -> Iterator[WaitingView]:
        self._follow(groups)
        running = Counter(request.routing_key for request in view.running if request.routing_key)
        overdue = view.now - self._max_wait
        classes = sorted(self._lines.items(), key=itemgetter(0), reverse=True)
        return chain.from_iterable(_ordered(lines, running, overdue) for _, lines in classes)

    def admit(self, request: WaitingView, view: ScheduleView) -> bool:
        key = request.routing_key
        if not self._max_keys or not key or request.arrival <= view.now - self._max_wait:
            return True
        running = {other.routing_key for other in view.running if other.routing_key}
        return key in running or len(running) < self._max_keys

    def _follow(self, groups: Groups) -> None:
        """Bring the lines up to date with what has changed in the groups."""
        names = groups.news()
        if groups is not self._groups:
            self._groups, self._lines = groups, {}
            names = set(groups)
        for priority, key, units in cast("set[Name]", names):
            lines = self._lines.setdefault(priority, Lines())
            lines.change(key, units, groups.get((priority, key, units)))
            if not lines:
                del self._lines[priority]


def _ordered(lines: Lines, running: Mapping[str, int], overdue: float) -> Iterator[WaitingView]:
    """`running`: requests that run, by key. Who came before `overdue` and has no such key has waited too long."""
    gone: set[int] = set()
    for request in takewhile(lambda request: request.arrival <= overdue, lines.heads()):
        if request.routing_key not in running:
            gone.add(request.order)
            yield request
    there = [key for key in running if key in lines.by_key]
    there.sort(key=lambda key: (-running[key], lines.by_key[key].head.order))
    first = (lines.by_key[key] for key in there)
    for request in chain.from_iterable(chain(first, lines.by_age(without=running))):
        if request.order not in gone:
            yield request
