"""The requests of one tenant in one priority: whose turn it is among them, and which has waited for longest."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge as merge_sorted
from operator import attrgetter

from stepwell import Group, WaitingView

_order = attrgetter("order")

Turn = tuple[int, float, int, WaitingView]
"""Less urgency, less response ratio, rank of arrival, request: smaller goes first."""


class Line:
    """Requests in groups by size, in each by arrival: the heads of the groups are all that a turn has to look at."""

    __slots__ = ("groups", "oldest", "priority", "tenant")

    def __init__(self, priority: int, tenant: str) -> None:
        self.priority = priority
        self.tenant = tenant
        self.groups: dict[int, tuple[WaitingView, Group]] = {}
        """By size: a group's first request when it was last looked at, and the group."""
        self.oldest: WaitingView | None = None

    def change(self, size: int, group: Group | None) -> None:
        """A group has other requests now, or none."""
        if group is None:
            self.groups.pop(size, None)
        else:
            self.groups[size] = group.first, group
        self.oldest = min((first for first, _ in self.groups.values()), key=_order, default=None)

    def turns(self, now: float, age_s: float) -> Iterator[Turn]:
        """Its requests in order: by urgency, then by how long they wait for what they ask, then by arrival."""
        turns = [self._of(size, group, now, age_s) for size, (_, group) in self.groups.items()]
        return turns[0] if len(turns) == 1 else merge_sorted(*turns)

    def _of(self, size: int, group: Group, now: float, age_s: float) -> Iterator[Turn]:
        urgent = -self.priority
        for request in group:
            if age_s:
                urgent = -urgency(request, now, age_s)
            # (wait + service) / service without what all have alike: one, and the seconds that a token takes.
            yield urgent, (request.arrival - now) / (1 << size), request.order, request


def urgency(request: WaitingView, now: float, age_s: float) -> int:
    """Its priority, and one more for each `age_s` seconds that it has waited; 0: none."""
    return request.priority + max(0, int((now - request.arrival) // age_s) if age_s else 0)
