"""Urgent first, then each tenant its share, then who waits for long compared with what it asks.

One tenant's flood then delays itself: another's request goes before it as soon as that other one has been served less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stepwell import Context, Groups, RankedPolicy, RunningView, ScheduleView, WaitingView, share_out
from stepwell.settings import at_least
from stepwell_fair.service import Service
from stepwell_fair.turns import Lines, Name

OLDEST = 4
"""One part in so many of a step's prompt tokens is for the prompt under way for longest, whatever others ask."""
LEAST = 2.0**-27
"""What divides, and is less, cannot be meant: quotients would leave the range in which they compare."""


@dataclass(frozen=True, slots=True)
class FairConfig:
    """The `[schedule]` table when `use = "fair"`."""

    max_passes: int = 256
    """A request that later ones have passed this often goes first. 0 is arrival order."""
    preempt_over: int = 10
    """A waiting request may push out those whose priority is at least so much smaller. 0: nobody is pushed out."""
    age_s: float = 0.0
    """A waiting request counts as one priority more urgent for each so many seconds that it has waited. 0: never."""
    memory_s: float = 60.0
    """What a tenant was served fades to a half in so many seconds. 0: only requests that run count."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """A tenant's part beside those of others; one that is not named has 1: `weights = { gold = 4 }`."""

    def __post_init__(self) -> None:
        for name in ("max_passes", "preempt_over", "age_s", "memory_s"):
            at_least(name, getattr(self, name), 0)
        for name in ("age_s", "memory_s"):
            if 0 < getattr(self, name) < LEAST:
                raise ValueError(f"{name}: {getattr(self, name)} is less than can be meant; 0 is none at all")
        for tenant, weight in self.weights.items():
            at_least("weights", weight, LEAST, f"{tenant} = {weight}")


class Fair(RankedPolicy):
    """By priority, then by what a tenant has been served by its weight, then by response ratio, then by arrival."""

    def __init__(self, config: FairConfig, context: Context | None) -> None:
        self.max_passes = config.max_passes
        self.remembers = config.memory_s > 0
        self._age_s = config.age_s
        self._service = Service(config.memory_s, config.weights)
        self._lines = Lines()

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[Name, float]:
        size = (request.length + request.max_new).bit_length()
        return (request.priority, request.tenant or "", size), 0.0

    def merge(self, groups: Groups, view: ScheduleView) -> Iterator[WaitingView]:
        served = self._service.look(view, groups.holds)
        self._lines.follow(groups)
        return self._lines.in_turn(view, served, self._service, self._age_s)

    def admit(self, request: WaitingView, view: ScheduleView) -> bool:
        self._service.tried(request, view)
        return True

    def victim(self, running: Sequence[RunningView], view: ScheduleView) -> RunningView:
        shares = self._service.shares(view.running)
        return max(running, key=lambda one: (-one.priority, shares.get(one.tenant or "", 0.0), one.order))

    def chunks(self, prompts: Sequence[RunningView], budget: int, view: ScheduleView) -> Sequence[int]:
        turns = sorted(range(len(prompts)), key=lambda at: -prompts[at].priority)
        return share_out(prompts, budget, turns, oldest=budget // OLDEST)


class PreemptingFair(Fair):
    """Has less urgent requests give way. A class of its own: core asks nobody whose class names nobody."""

    def __init__(self, config: FairConfig, context: Context | None) -> None:
        super().__init__(config, context)
        self._over = config.preempt_over

    def preempt(
        self, request: WaitingView, running: Sequence[RunningView], view: ScheduleView
    ) -> Sequence[RunningView]:
        # By what was asked for, not by urgency gained by waiting: else two would push each other out in turn.
        below = [one for one in running if request.priority - one.priority >= self._over]
        return sorted(below, key=lambda one: (one.priority, -one.order))


def fair(config: FairConfig, context: Context | None) -> Fair:
    """As `preempt_over` says."""
    return (PreemptingFair if config.preempt_over else Fair)(config, context)
