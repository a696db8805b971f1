"""A little core: pages, admission, aging and retraction as core has them, a step at a time by a clock of its own.

It has no tiers and shares no pages, and works everything out anew where core remembers. What a policy may not do fails
here at once; core would count it and go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell import SchedulePolicy, WaitingView
from stepwell_testkit.schedule.queues import PAGE, whole
from stepwell_testkit.schedule.views import KitView

LOOK_AT = 64
MAX_RETRACTIONS = 3


@dataclass(slots=True, eq=False)
class Job:
    """A request from its arrival to its end (a `stepwell.RunningView`); the same object all the time, as in core."""

    order: int
    rid: str = ""
    arrival: float = 0.0
    length: int = 64
    max_new: int = 16
    priority: int = 0
    routing_key: str | None = None
    tenant: str | None = None
    passes: int = 0
    retractions: int = 0
    generated: int = 0
    pages: int = 0
    unplanned: int = 0


@dataclass
class LittleCore:
    """`step()` plans and runs one step. `hits` says what is cached."""

    policy: SchedulePolicy
    pages: int
    slots: int = 8
    budget: int = 512
    hits: dict[str, int] = field(default_factory=dict)
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    now: float = 0.0
    asked: bool = False
    """Somebody has been asked to give way in this pass."""

    @property
    def view(self) -> KitView:
        """What the policy may ask now."""
        return KitView(self.hits, list(self.running), self.now)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self.pages - sum(job.pages for job in self.running)

    def arrive(self, job: Job) -> None:
        """A request is queued, the latest by its rank."""
        assert (job.length + job.max_new) // PAGE + 1 <= self.pages, "the kit has made a request that never fits"
        self.waiting.append(job)

    def step(self) -> None:
        """Admit, compute, and let go of those who are done."""
        self.now += 1.0
        self.asked = False
        while self.admit():
            pass
        self._prefill()
        self._decode()

    def admit(self) -> Job | None:
        """Admit the first that may go and fits: the overdue first, by arrival, then as the policy has it."""
        view, misfits = self.view, 0
        for job in self._order(view):
            overdue = job.passes >= self.policy.max_passes
            if self.running and not overdue and not self.policy.admit(job, view):
                continue
            if not self._fits(job, ()):
                misfits += 1
                gone = self._give_way(job, view)
                if gone is None:
                    if overdue or not self.policy.look_past(job, misfits, view):
                        return None
                    continue
                self.running = [one for one in self.running if one not in gone]
                self._start(job)
                for one in gone:
                    self._send_back(one)
                return job
            self._start(job)
            return job
        return None

    def _order(self, view: KitView) -> list[Job]:
        overdue = [job for job in self.waiting if job.passes >= self.policy.max_passes]
        proposed = []
        for request in self.policy.order(tuple(self.waiting), view):
            job = next((job for job in self.waiting if job is request), None)
            assert job is not None, f"{request} does not wait"
            assert job not in proposed, f"{request} is named twice"
            proposed.append(job)
            if len(proposed) == LOOK_AT:
                break
        assert len(proposed) == min(LOOK_AT, len(self.waiting)), "the order leaves somebody out who waits"
        return overdue + [job for job in proposed if job not in overdue]

    def _fits(self, job: Job, without: Sequence[Job]) -> bool:
        free = self.free + sum(one.pages for one in without)
        return len(self.running) - len(without) < self.slots and _pages(job) <= free

    def _give_way(self, job: Job, view: KitView) -> list[Job] | None:
        """Who makes room for it: the fewest of those that the policy names, in its order; None where none do."""
        if self.asked:
            return None
        self.asked = True
        able = [one for one in self.running if one.retractions < MAX_RETRACTIONS]
        gone: list[Job] = []
        for victim in self.policy.preempt(job, able, view):
            assert victim not in gone, f"preempt names {victim} twice"
            gone.append(_one_of(victim, able, "preempt"))
            if self._fits(job, gone):
                return gone
        return None

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        for other in self.waiting:
            if other.order < job.order:
                assert other.passes < self.policy.max_passes, f"{other} is passed once more than the bound"
                other.passes += 1
        job.pages = _pages(job)
        job.unplanned = job.length - min(self.hits.get(job.rid, 0), job.length - 1)
        self.running.append(job)

    def _send_back(self, job: Job) -> None:
        """It gives up its pages and waits again, in its place by arrival, what it generated part of its prompt."""
        job.retractions += 1
        job.pages = job.unplanned = 0
        at = sum(other.order < job.order for other in self.waiting)
        self.waiting.insert(at, job)

    def _prefill(self) -> None:
        prompts = [job for job in self.running if job.unplanned]
        if not prompts:
            return
        left = self.budget
        asked = whole(self.policy.chunks(prompts, left, self.view))
        for job, share in zip(prompts, asked, strict=True):
            share = min(share, left, job.unplanned)
            job.unplanned -= share
            left -= share
        for job in prompts:
            share = min(left, job.unplanned)
            job.unplanned -= share
            left -= share

    def _decode(self) -> None:
        for job in [job for job in self.running if not job.unplanned]:
            while job in self.running and _pages(job) > job.pages + self.free:
                self._retract()
            if job in self.running:
                job.pages = _pages(job)
                job.generated += 1
                if job.generated >= job.max_new:
                    self.running.remove(job)

    def _retract(self) -> None:
        able = [one for one in self.running if one.retractions < MAX_RETRACTIONS] or list(self.running)
        victim = _one_of(self.policy.victim(able, self.view), able, "victim")
        self.running.remove(victim)
        self._send_back(victim)


def _pages(job: Job) -> int:
    """Pages of its prompt, of what it has generated, and of the next token."""
    return (job.length + job.generated) // PAGE + 1


def _one_of(answer: WaitingView, jobs: Sequence[Job], decision: str) -> Job:
    found = next((job for job in jobs if job is answer), None)
    assert found is not None, f"{decision} names {answer}, who is not among those it was asked about"
    return found
