"""Requests that wait in a line for each routing key, and the lines by how long their oldest request has waited."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from heapq import merge as merge_sorted
from itertools import chain
from operator import attrgetter

from stepwell import Group, WaitingView

_order = attrgetter("order")


class Line(Iterable[WaitingView]):
    """The requests of one key, those of whom most is cached first where that counts."""

    __slots__ = ("groups", "oldest")

    def __init__(self) -> None:
        self.groups: dict[int, tuple[WaitingView, Group]] = {}
        """By cached units: a group's first request when it was last looked at, and the group, which goes by arrival."""
        self.oldest: WaitingView | None = None

    @property
    def head(self) -> WaitingView:
        """The oldest of a line that is not empty."""
        assert self.oldest is not None
        return self.oldest

    def __iter__(self) -> Iterator[WaitingView]:
        return chain.from_iterable(self.groups[units][1] for units in sorted(self.groups, reverse=True))


class Lines:
    """The lines of one priority. False where nobody waits."""

    def __init__(self) -> None:
        self.by_key: dict[str, Line] = {}
        self._by_age: list[tuple[int, str]] = []
        """Rank of arrival of the oldest, and the key."""
        self._alone: Iterable[WaitingView] = ()
        """Those without a key."""

    def __bool__(self) -> bool:
        return bool(self.by_key or self._alone)

    def change(self, key: str | None, units: int, group: Group | None) -> None:
        """A group of a key has other requests now, or none."""
        if key is None:
            self._alone = group or ()
            return
        line = self.by_key.setdefault(key, Line())
        if group is None:
            line.groups.pop(units, None)
        else:
            line.groups[units] = group.first, group
        oldest = min((first for first, _ in line.groups.values()), key=_order, default=None)
        if line.oldest is not None:
            del self._by_age[bisect_left(self._by_age, (line.oldest.order, key))]
        line.oldest = oldest
        if oldest is None:
            del self.by_key[key]
        else:
            insort(self._by_age, (oldest.order, key))

    def heads(self) -> Iterator[WaitingView]:
        """The oldest request of each key, and all that have no key, by arrival."""
        oldest = (self.by_key[key].head for _, key in self._by_age)
        return merge_sorted(oldest, self._alone, key=_order)

    def by_age(self, without: Container[str]) -> Iterator[Iterable[WaitingView]]:
        """Lines by their oldest request but for those of some keys; requests without a key between them."""
        for head in self.heads():
            if not head.routing_key:
                yield (head,)
            elif head.routing_key not in without:
                yield self.by_key[head.routing_key]
