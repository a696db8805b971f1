"""Orders that are kept, not made: requests wait in groups, each sorted by rank, and a change costs what changed.

A policy says where a request stands, and how groups are merged into one order. Core keeps the groups between passes and
asks anew only about requests of which something has changed, so the length of the queue does not matter.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import merge as merge_sorted

from stepwell.abc.schedule import SchedulePolicy, ScheduleView, WaitingView
from stepwell.said import said

Rank = float | tuple[float, ...]
"""Smaller goes first. All ranks of a policy are numbers, or all are tuples."""

MANY = 16
"""Where more than one in so many changes, all are gone through instead."""

Entry = tuple[Rank, int, WaitingView]
"""Rank, rank of arrival, request; unique by the first two, so requests are never compared."""


class Group(Iterable[WaitingView]):
    """Requests that wait together, smallest rank first, by arrival among equals. Never empty."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """Sorted."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[WaitingView]:
        return (entry[2] for entry in self.entries)

    @property
    def first(self) -> WaitingView:
        """Whose turn it is in this group."""
        return self.entries[0][2]


class Groups(Mapping[Hashable, Group]):
    """The groups of a queue, by what `place` calls them, in no particular order.

    `update` is for who keeps them; a policy only reads, and `news` tells it what to read again.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, Group] = {}
        self._places: dict[int, tuple[Hashable, Rank]] = {}
        """By the request's rank of arrival."""
        self._news: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._groups)

    def __getitem__(self, name: Hashable) -> Group:
        return self._groups[name]

    def news(self) -> set[Hashable]:
        """Groups that came, went, or have other requests than when this was last asked. One reader: the policy."""
        news, self._news = self._news, set()
        return news

    def put(self, request: WaitingView, name: Hashable, rank: Rank) -> None:
        """A request waits in a group at a rank; it leaves the place that it had."""
        self.update([(request, name, rank)])

    def discard(self, request: WaitingView) -> None:
        """A request waits no longer; nothing happens where it did not."""
        self.update((), [request])

    def holds(self, request: WaitingView) -> bool:
        """Whether a request waits in any of them."""
        return request.order in self._places

    def update(self, placed: Iterable[tuple[WaitingView, Hashable, Rank]], gone: Iterable[WaitingView] = ()) -> None:
        """Some wait no longer, others wait at a place, perhaps another than they had. Each is named once at most."""
        leave: dict[Hashable, list[tuple[Rank, int]]] = {}
        come: dict[Hashable, list[Entry]] = {}
        places = self._places
        for request in gone:
            place = places.pop(request.order, None)
            if place is not None:
                leave.setdefault(place[0], []).append((place[1], request.order))
        for request, name, rank in placed:
            order = request.order
            place = places.get(order)
            if place is not None:
                if place == (name, rank):
                    continue
                leave.setdefault(place[0], []).append((place[1], order))
            places[order] = (name, rank)
            if name in come:
                come[name].append((rank, order, request))
            else:
                come[name] = [(rank, order, request)]
        for name, keys in leave.items():
            _take_out(self._groups[name].entries, keys)
        for name, entries in come.items():
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = Group()
            _put_in(group.entries, entries)
        for name in leave:
            if not self._groups[name].entries:
                del self._groups[name]
        self._news.update(leave, come)


def _take_out(entries: list[Entry], keys: list[tuple[Rank, int]]) -> None:
    if _many(keys, entries):
        gone = {order for _, order in keys}
        entries[:] = [entry for entry in entries if entry[1] not in gone]
        return
    for key in keys:
        del entries[bisect_left(entries, key)]


def _put_in(entries: list[Entry], more: list[Entry]) -> None:
    if _many(more, entries):
        entries += more
        entries.sort()
        return
    for entry in more:
        insort(entries, entry)


def _many(some: Sequence[object], entries: Sequence[object]) -> bool:
    """Whether going through all entries once costs less than to find a place for each of some."""
    return len(some) > len(entries) // MANY


class RankedPolicy(SchedulePolicy):
    """An order that is told request by request."""

    probes: bool = False
    """Whether `place` asks what is cached. A request for which that has changed is then placed anew."""

    @abstractmethod
    def place(self, request: WaitingView, view: ScheduleView) -> tuple[Hashable, Rank]:
        """The group in which a request waits, and its rank there.

        Depends on the request itself and, with `probes`, on `view.cached` and `view.prefix` of it; on nothing else, for
        core asks only when one of those has changed. What depends on time or on who runs belongs into `merge`.
        """

    def merge(self, groups: Groups, view: ScheduleView) -> Iterable[WaitingView]:
        """All groups in one order, each in its own; as lazy as can be. Default: by rank over all groups."""
        if len(groups) == 1:
            return next(iter(groups.values()))
        return (entry[2] for entry in merge_sorted(*(group.entries for group in groups.values())))

    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Iterable[WaitingView]:
        """What core does, from scratch."""
        groups = Groups()
        groups.update([(request, *placed(self.place(request, view))) for request in waiting])
        return self.merge(groups, view)


def placed(answer: tuple[Hashable, Rank]) -> tuple[Hashable, Rank]:
    """What `place` has answered; TypeError where that is no group and rank."""
    try:
        name, rank = answer
    except (TypeError, ValueError):
        raise TypeError(f"place has to answer (group, rank), not {said(answer)}") from None
    return name, rank
