"""What goes into a brain's tick and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.abc.runner import StepPlan, StepResult
from stepwell.cache.cache import FetchOp, FetchPlan, StoreOp
from stepwell.engine.messages import Abort, Output
from stepwell.schedule.request import Request
from stepwell.types import PageResult


@dataclass(frozen=True, slots=True)
class SavesEnded:
    """Saves of a runner with `late_saves` have ended: by id, which of their pages were copied whole."""

    copies: Mapping[int, tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class Queried:
    """Storage answered what it holds of a plan (per group, parallel to its keys); an error reads as nothing held."""

    rid: str
    present: Sequence[Sequence[bool]]


@dataclass(frozen=True, slots=True)
class FetchMoved:
    """A fetch got on: `done` pages so far."""

    id: int
    done: int
    late: bool = False
    """A read has outlived its deadline: nobody should wait for this fetch, whenever it ends."""


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """A fetch ended, by itself or by StopFetch: nothing writes to its pages any more."""

    id: int
    results: Sequence[Sequence[PageResult]]


@dataclass(frozen=True, slots=True)
class StoreEnded:
    """A store ended; one result a page."""

    id: int
    results: Sequence[PageResult]


@dataclass(frozen=True, slots=True)
class Attached:
    """There is storage from now on. Comes first among the events of its tick, as do the next two."""


@dataclass(frozen=True, slots=True)
class Detached:
    """The storage is gone. What it was asked is still answered, once; nothing further may be asked of it."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The storage has forgotten all its pages."""


Event = (
    Request | Abort | StepResult | SavesEnded
    | Queried | FetchMoved | FetchEnded | StoreEnded | Attached | Detached | Cleared
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a step."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Query:
    """Ask storage what it holds of a plan, for a waiting request; answered by Queried."""

    rid: str
    plan: FetchPlan


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read pages from storage into host pages; answered by FetchMoved and one FetchEnded."""

    op: FetchOp


@dataclass(frozen=True, slots=True)
class StopFetch:
    """Start no further read of a fetch; FetchEnded still comes, once."""

    id: int


@dataclass(frozen=True, slots=True)
class Store:
    """Write host pages to storage; answered by StoreEnded."""

    op: StoreOp


Action = Launch | Query | Fetch | StopFetch | Store | Output
