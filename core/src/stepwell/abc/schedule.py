"""In which order waiting requests are admitted, and who gives way when pages run out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol


class WaitingView(Protocol):
    """A request in the queue, as a policy may see it."""

    @property
    def rid(self) -> str: ...
    @property
    def arrival(self) -> float:
        """Engine time at which it was first queued; a retracted request keeps its own."""

    @property
    def order(self) -> int:
        """Rank of its arrival, unique."""

    @property
    def length(self) -> int:
        """Tokens of its prompt, and of what it generated before it was retracted."""

    @property
    def max_new(self) -> int: ...
    @property
    def priority(self) -> int:
        """Larger is more urgent."""

    @property
    def routing_key(self) -> str | None: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def passes(self) -> int:
        """How often a later request was admitted before it."""


class RunningView(WaitingView, Protocol):
    """A request that holds pages."""

    @property
    def generated(self) -> int:
        """Tokens generated so far."""

    @property
    def pages(self) -> int:
        """Device pages it holds, over all groups."""


class ScheduleView(Protocol):
    """What core answers a policy; probes are shared and remembered while nothing changed."""

    @property
    def now(self) -> float: ...
    @property
    def running(self) -> Sequence[RunningView]: ...
    @property
    def version(self) -> int:
        """Changes whenever an answer of `cached` about the same request may have changed."""

    def cached(self, request: WaitingView) -> int:
        """Tokens of the request's prompt that device or host hold. Does not count as a use."""


class SchedulePolicy(ABC):
    """Orders the queue. Pure, called on the serving thread; core alone decides what fits."""

    max_passes: int = 64
    """Aging bound: a request that later ones have passed this often goes first. Core enforces it."""

    @abstractmethod
    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Sequence[WaitingView]:
        """The requests in the order in which to try them: each of `waiting` once. `waiting` is in arrival order."""

    def victim(self, running: Sequence[RunningView], view: ScheduleView) -> RunningView:
        """Who is retracted when pages run out; `running` is not empty. Default: least urgent, then latest."""
        return max(running, key=lambda request: (-request.priority, request.order))
