"""Where a waiting request's fetch from storage stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from stepwell.abc.prefetch import FetchProgress
from stepwell.cache.cache import FetchOp, FetchPlan
from stepwell.types import PageKey

if TYPE_CHECKING:
    from stepwell.schedule.job import Job


class State(Enum):
    """Only DONE, LATE and REVOKED let the request run."""

    QUEUED = "queued"
    """Storage has been asked, or another request's fetch of the same pages goes first."""
    PLANNED = "planned"
    """Storage has answered; the fetch waits for its share of the pages that may be in flight."""
    MOVING = "moving"
    STOPPING = "stopping"
    """No further read starts; what is in the air may still land."""
    LATE = "late"
    """A read hangs; its pages come back when it returns, whoever waits then."""
    DONE = "done"
    REVOKED = "revoked"
    """It brought nothing: storage has nothing, the policy gave it up, or it could not start."""


@dataclass(slots=True, eq=False)
class Fetching:
    """One request's fetch."""

    job: Job
    plan: FetchPlan
    state: State = State.QUEUED
    present: Sequence[Sequence[bool]] = ()
    wanted: int = -1
    """Pages that storage holds; -1: not known yet."""
    done: int = 0
    op: FetchOp | None = None
    since: float | None = None
    """When the request was first able to run but for this."""
    stopped: float = 0.0
    followers: deque[Job] = field(default_factory=deque)
    """Requests that miss the same first page and wait for this fetch instead of reading it again."""

    @property
    def settled(self) -> bool:
        """Whether the request may run."""
        return self.state in (State.DONE, State.LATE, State.REVOKED)

    @property
    def head(self) -> PageKey:
        """The first page it misses: equal heads mean equal prefixes."""
        return next(keys[0] for keys in self.plan.keys if keys)

    def progress(self, now: float, page: int) -> FetchProgress:
        """As a prefetch policy sees it."""
        return FetchProgress(now - (now if self.since is None else self.since), self.done, self.wanted, page)
