"""Which request is tried next, whether it may go now, who gives way, and how prompts share a step.

Core keeps what is correct: budgets, pages, slots, aging bounds. A policy only chooses, one decision a method, and each
decision but the order has a default. An answer that cannot be used is counted as a fault, and the default taken.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

LOOK_PAST = 4
"""Requests that do not fit and that others behind may pass, in one admission pass, where the policy says nothing."""


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

    @property
    def retractions(self) -> int:
        """How often it was sent back to the queue to make room."""


class RunningView(WaitingView, Protocol):
    """A request that holds pages."""

    @property
    def generated(self) -> int:
        """Tokens generated so far."""

    @property
    def pages(self) -> int:
        """Device pages it holds, over all groups."""

    @property
    def unplanned(self) -> int:
        """Tokens of its prompt that no step computes yet; 0 once it only decodes."""


class Prefix(Protocol):
    """A cached prefix that requests may share. Compared and hashed by identity; it holds as long as `version` does."""

    @property
    def parent(self) -> "Prefix | None":
        """The shorter prefix that it goes on from; None where that is the empty one."""


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

    def prefix(self, request: WaitingView) -> Prefix | None:
        """The longest cached prefix of the request; None where nothing of it is cached."""

    def expected(self, request: WaitingView) -> float:
        """Tokens that it will probably generate yet, judged by requests that have finished."""


class SchedulePolicy(ABC):
    """Chooses among requests. Called on the serving thread: no I/O, no clock of its own, asked twice it says the same.

    `RankedPolicy` is the base of orders that cost only what changed, however many requests wait.
    """

    max_passes: int = 64
    """Aging bound: a request that later ones have passed this often goes first. Core enforces it."""
    remembers: bool = False
    """Whether it goes by what it was told before, such as who was served; a new one may then answer otherwise."""

    @abstractmethod
    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Iterable[WaitingView]:
        """The requests in the order in which to try them: each of `waiting` once. `waiting` is in arrival order.

        Core reads no more than an admission pass looks at, so a lazy answer need not be worked out to its end.
        """

    def admit(self, request: WaitingView, view: ScheduleView) -> bool:
        """Whether to try a request whose turn it is. False lets it wait although it may fit; others are tried.

        Not asked of a request that was passed `max_passes` times, nor where nothing runs.
        """
        return True

    def look_past(self, request: WaitingView, misfits: int, view: ScheduleView) -> bool:
        """Whether those behind a request that does not fit now are tried. `misfits`: how many in this pass, with it.

        Core looks past no request that was passed `max_passes` times or for which somebody gave way.
        """
        return misfits <= LOOK_PAST

    def preempt(
        self, request: WaitingView, running: Sequence[RunningView], view: ScheduleView
    ) -> Sequence[RunningView]:
        """Who would give way to a waiting request that does not fit, first first. Default: nobody.

        Core takes the fewest, in this order, that make room, and none where all of them would not. Who was retracted
        too often stays, and who was passed `max_passes` times. Asked once a pass at most, of the first misfit.
        """
        return ()

    def victim(self, running: Sequence[RunningView], view: ScheduleView) -> RunningView:
        """Who is retracted when pages run out; `running` is not empty. Default: least urgent, then latest.

        Requests that were retracted too often are not among `running` unless there are no others.
        """
        return max(running, key=lambda request: (-request.priority, request.order))

    def chunks(self, prompts: Sequence[RunningView], budget: int, view: ScheduleView) -> Sequence[int]:
        """Tokens that each prompt under way gets of a step's `budget`. `prompts`: in the order of their admission.

        Core rounds down to whole pages, hands out no more than there is, and gives what is left to the first.
        Default: the first as much as it can use, then the next.
        """
        return share_out(prompts, budget, range(len(prompts)))


def share_out(prompts: Sequence[RunningView], budget: int, turns: Iterable[int], oldest: int = 0) -> list[int]:
    """Tokens of a step's `budget` for each of `prompts`, for `SchedulePolicy.chunks`.

    The first has up to `oldest` of them before all others, so that it ends however many come; then each as many as it
    can use, in the order of `turns`, which are places in `prompts`.
    """
    shares = [0] * len(prompts)
    if prompts:
        shares[0] = min(prompts[0].unplanned, oldest)
    left = budget - sum(shares)
    for at in turns:
        more = min(prompts[at].unplanned - shares[at], left)
        shares[at] += more
        left -= more
    return shares
