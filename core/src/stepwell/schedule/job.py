"""A request as the brain keeps it: a job from its arrival to its last output, and a seat each time it runs.

A job that is retracted loses its seat and gets another one later; results of steps that were launched for the old seat
are recognised by it and dropped.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from stepwell.cache.cache import Lease, Rescue
from stepwell.schedule.request import Request
from stepwell.types import TOKEN_BYTES, Cached

if TYPE_CHECKING:
    from stepwell.schedule.fetching import Fetching
    from stepwell.schedule.line import Line
    from stepwell.schedule.probes import Spot


class Job:
    """A request in any state; what schedule policies see of it, waiting or running."""

    __slots__ = (
        "aged",
        "arrival",
        "cached",
        "failures",
        "fetch",
        "fetched",
        "fetched_from",
        "followed",
        "gave_way",
        "generated_before",
        "length",
        "line",
        "load",
        "max_new",
        "order",
        "passed",
        "priority",
        "probed",
        "prompt_length",
        "reached",
        "request",
        "rescue",
        "retractions",
        "rid",
        "routing_key",
        "seat",
        "spot",
        "started",
        "tenant",
        "tokens",
    )

    def __init__(self, request: Request, order: int, arrival: float) -> None:
        self.request = request
        self.rid = request.rid
        self.order = order
        self.arrival = arrival
        self.priority = request.priority
        self.routing_key = request.routing_key
        self.tenant = request.tenant
        self.max_new = request.sampling.max_tokens
        self.tokens = request.tokens
        """The prompt, and what was generated before the job was last retracted."""
        self.length = self.prompt_length = len(request.tokens) // TOKEN_BYTES
        self.generated_before = 0
        self.passed = 0
        """How often a later one was admitted before it, as long as it stands in no line."""
        self.line: Line | None = None
        """Where it waits, and is counted."""
        self.aged = False
        """It has been passed too often: nobody goes before it any more."""
        self.cached: Cached | None = None
        """What its first admission found; later ones find its own work, which is no hit."""
        self.started: float | None = None
        """When it was admitted first; from its arrival to here is its queue time."""
        self.retractions = 0
        """How often it gave its pages to others."""
        self.rescue: Rescue | None = None
        """What host keeps for it while it is back in the queue."""
        self.reached = 0
        """Tokens below were computed before it last went back to the queue."""
        self.gave_way: tuple[int, ...] = ()
        """For whom, by rank of arrival; it never takes from them in turn."""
        self.failures = 0
        """Steps that failed under it."""
        self.load = True
        """Whether it may load from host; not after a load failed."""
        self.fetch: Fetching | None = None
        self.fetched = self.fetched_from = 0
        """A fetch brought the tokens between from storage for it."""
        self.followed = False
        """It waited for another that was computing its prefix."""
        self.probed = 0
        """Tokens that were cached of it, when that was last asked."""
        self.spot: Spot | None = None
        """Where in the tree that was found; None where it has to be asked anew."""
        self.seat: Seat | None = None

    @property
    def passes(self) -> int:
        """How often a later one was admitted before it."""
        return self.passed if self.line is None else self.line.passes(self)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return self.generated_before + (len(self.seat.out) if self.seat else 0)

    @property
    def pages(self) -> int:
        """Device pages it holds, over all groups."""
        return sum(int((table >= 0).sum()) for table in self.seat.lease.tables) if self.seat else 0

    @property
    def unplanned(self) -> int:
        """Tokens of its prompt that no step computes yet."""
        return max(0, self.seat.target - self.seat.planned) if self.seat else self.length

    def resume_later(self) -> None:
        """Give up the seat and keep what was generated, as if it were part of the prompt."""
        assert self.seat is not None
        out = self.seat.out
        self.tokens += array("i", out).tobytes()
        self.length += len(out)
        self.generated_before += len(out)
        self.seat = None


class Seat:
    """A job's place in the running batch: its slot, its pages, and how far it is. All positions are in tokens."""

    __slots__ = (
        "base",
        "cached",
        "done",
        "ended",
        "foreseen",
        "foreseen_at",
        "job",
        "last",
        "lease",
        "left",
        "loading",
        "out",
        "planned",
        "prompt",
        "rid",
        "short_since",
        "slot",
        "stops",
        "store",
        "target",
        "tokens",
        "trim_at",
        "until",
        "visible",
    )

    def __init__(self, job: Job, slot: int, lease: Lease, eos: tuple[int, ...]) -> None:
        sampling = job.request.sampling
        start = lease.cached.total
        self.job = job
        self.rid = job.rid
        self.slot = slot
        self.lease = lease
        self.tokens = job.tokens
        self.prompt = job.prompt_length
        self.base = job.prompt_length - 1
        """`done - base` tokens have been generated once decoding has begun."""
        self.target = job.length
        """Prefill ends here."""
        self.last = job.prompt_length + job.max_new - 1
        """No position from here on is ever computed: the last token needs no row of its own."""
        self.planned = start
        """Positions below are computed by steps launched so far."""
        self.done = start
        """Positions below are computed by steps completed so far."""
        self.until = 0
        """Decode rows below this position need no further page."""
        self.visible = 0
        """Whole pages below are in the tree, on device."""
        self.trim_at = 0
        self.foreseen = 0.0
        """Where it will probably end."""
        self.foreseen_at = -1
        """How far it gets before that is asked again; -1: it was not asked yet."""
        self.out: list[int] = []
        """Tokens sampled for this seat."""
        stops = sampling.stop_ids if sampling.ignore_eos else (*sampling.stop_ids, *eos)
        self.stops = frozenset(stops) or None
        self.store = job.request.store
        self.cached = Cached()
        """As reported to the client."""
        self.loading = len(lease.loads)
        """Loads that have not been acknowledged."""
        self.short_since = -1
        """The step that was last in flight when pages ran out for it; -1: they did not."""
        self.ended = False
        """No further step computes it: it left, or leaves once those in flight have completed."""
        self.left = False
        """Its pages went back; what steps in flight say of it is dropped."""

    def computed(self) -> bytes:
        """All tokens whose KV is written by completed steps."""
        end = self.done * TOKEN_BYTES
        if self.done <= self.target:
            return self.tokens[:end]
        return self.tokens + array("i", self.out[: self.done - self.target]).tobytes()
