"""What a brain counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from stepwell.engine.tally import QUEUE_S, Tally, Waits, shorten
from stepwell.types import Cached

if TYPE_CHECKING:
    from stepwell.schedule.job import Job

Cause = Literal["pages", "preempted", "load", "step"]
CAUSES: tuple[Cause, ...] = ("pages", "preempted", "load", "step")
"""Why a running request goes back to the queue: pages ran out, somebody more urgent came, a load or a step failed."""
GAVE_WAY: frozenset[Cause] = frozenset(("pages", "preempted"))
Reason = Literal["fetch", "follows", "policy", "pages", "slots", "budget", "claim"]
REASONS: tuple[Reason, ...] = ("fetch", "follows", "policy", "pages", "slots", "budget", "claim")
"""Why an admission pass lets a request wait: its pages are on their way from storage; another computes its prefix; the
policy holds it back; pages, slots or the step's prompt tokens do not last; somebody gave way for another."""


class Told(msgspec.Struct, frozen=True):
    """What is counted and is no plain number."""

    waits: Waits = Waits()
    """Queue times: from arrival to first admission."""
    by: dict[str, dict[str, dict[str, float]]] = {}
    """By kind (`routing_key`, `tenant`) and name: requests, waiting, running, tokens and so on."""
    last_fault: str = ""
    """The latest answer of a policy that could not be used."""

    def spelled(self) -> dict[str, object]:
        """The same as JSON-like values by name, beside plain numbers."""
        waits = self.waits
        bounds = (*(f"{bound:g}" for bound in QUEUE_S), "inf")
        buckets = dict(zip(bounds, waits.counts, strict=True))
        queue: dict[str, object] = {"count": waits.count, "sum": waits.seconds, "up_to": buckets}
        return {"queue_seconds": queue, "by": self.by, "last_fault": self.last_fault}


APART = {"apart": True}
FAULT_CHARS = 500
"""Of a fault's text, which travels with every sign of life."""


@dataclass(slots=True)
class Counters:
    """Counters since the start. Tokens, requests or bytes, as the name says."""

    ticks: int = 0
    steps: int = 0
    requests: int = 0
    refused: int = 0
    admissions: int = 0
    retractions: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    unknown_aborts: int = 0
    unknown_saves: int = 0
    """Saves that the runner said had ended, and that were not in flight."""
    step_errors: int = 0
    failed_loads: int = 0
    follows: int = 0
    """Times an admission pass let a request wait for another that was computing its prefix."""
    stalls: int = 0
    """Rows left out of a step because pages had run out."""
    prompt_tokens: int = 0
    """Of requests admitted for the first time."""
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    resumed_tokens: int = 0
    """Found in the cache by requests that ran before: their own work, no hits."""
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    """Computed once more because their request had gone back to the queue."""
    rescued_tokens: int = 0
    """Of requests that gave way: copied to host for their return, as the write policy had not done."""
    generated_tokens: int = 0
    surplus_tokens: int = 0
    """Sampled after a stop that was found a step late, or for a request that had gone; dropped."""
    fetches_skipped: int = 0
    fetches_followed: int = 0
    fetches_delayed: int = 0
    """Times a fetch had to wait because the bound on pages in flight was reached."""
    fetches_stopped: int = 0
    fetches_revoked: int = 0
    bytes_loaded: int = 0
    bytes_saved: int = 0
    bytes_stored: int = 0
    bytes_fetched: int = 0
    passes_worst: int = 0
    """Times that later requests were admitted before the one that this befell most; not a sum."""
    policy_faults: int = 0
    last_fault: str = field(default="", metadata=APART)
    causes: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0), metadata=APART)
    skips: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0), metadata=APART)
    waits: list[int] = field(default_factory=lambda: [0] * (len(QUEUE_S) + 1), metadata=APART)
    waited_s: float = field(default=0.0, metadata=APART)
    by: Tally | None = field(default=None, metadata=APART)
    """By routing key and tenant, where asked."""

    @classmethod
    def counting(cls, kinds: Sequence[str]) -> Self:
        """Counters that count by routing key or tenant, too, where `kinds` names them."""
        return cls(by=Tally(kinds) if kinds else None)

    def fault(self, what: str) -> None:
        """A policy gave an answer that cannot be used; the default was used instead."""
        self.policy_faults += 1
        self.last_fault = shorten(what, FAULT_CHARS)

    def arrived(self, job: Job) -> None:
        """A request was queued for the first time."""
        if self.by is not None:
            for row in self.by.of(job):
                row.requests += 1
                row.waiting += 1

    def admitted(self, job: Job, now: float) -> None:
        """A request got its pages, for the first time or again."""
        self.admissions += 1
        self.passes_worst = max(self.passes_worst, job.passes)
        waited = None
        if job.started is None:
            job.started = now
            waited = max(0.0, now - job.arrival)
            self.waits[bisect_left(QUEUE_S, waited)] += 1
            self.waited_s += waited
        if self.by is not None:
            for row in self.by.of(job):
                row.admissions += 1
                row.waiting -= 1
                row.running += 1
                if waited is not None:
                    row.queue_seconds += waited
                    row.prompt_tokens += job.prompt_length

    def retracted(self, cause: Cause, job: Job) -> None:
        """A running request went back to the queue. To be called once each time, whatever the cause."""
        self.causes[cause] += 1
        self.retractions += cause in GAVE_WAY
        if self.by is not None:
            for row in self.by.of(job):
                row.retractions += cause in GAVE_WAY
                row.running -= 1
                row.waiting += 1

    def skipped(self, reason: Reason, job: Job) -> None:
        """An admission pass looked at a request and let it wait: about 0.1 us, so one call a request that is tried."""
        self.skips[reason] += 1
        if self.by is not None:
            for row in self.by.of(job):
                row.skips += 1

    def ended(self, job: Job, generated: int) -> None:
        """A request that had arrived ends, in whatever way, with so many tokens; told before it loses its seat."""
        if self.by is not None:
            for row in self.by.of(job):
                row.generated_tokens += generated
                if job.seat is None:
                    row.waiting -= 1
                else:
                    row.running -= 1

    def hit(self, cached: Cached, prompt: int) -> None:
        """A request was admitted for the first time."""
        self.prompt_tokens += prompt
        self.cached_device += cached.device
        self.cached_host += cached.host
        self.cached_storage += cached.storage

    def values(self) -> dict[str, float]:
        """All plain numbers by name."""
        values: dict[str, float] = {
            entry.name: getattr(self, entry.name) for entry in fields(self) if "apart" not in entry.metadata
        }
        values |= {f"retracted_{cause}": count for cause, count in self.causes.items()}
        values |= {f"skipped_{reason}": count for reason, count in self.skips.items()}
        return values

    def told(self) -> Told:
        """The rest."""
        by = {} if self.by is None else self.by.values()
        return Told(Waits(tuple(self.waits), self.waited_s), by, self.last_fault)
