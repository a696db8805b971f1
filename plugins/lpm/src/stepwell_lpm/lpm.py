"""Longest prefix first: what is cached is used before it is evicted.

It pays where many requests wait and share prefixes: requests on one prefix run one after another while it is resident,
instead of each recomputing what the one before it pushed out. It costs fairness: a request with nothing cached is
passed by every warm one that arrives. So the bound on passes is part of the policy, and there is no queue length from
which on it would fall back to another order.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell import Context, ScheduleView, WaitingView
from stepwell.settings import at_least
from stepwell_lpm.urgent import UrgentFirst


@dataclass(frozen=True, slots=True)
class LpmConfig:
    """The `[schedule]` table when `use = "lpm"`."""

    max_passes: int = 64
    """A request that later ones have passed this often goes first. 0 is arrival order."""
    granularity: int = 1
    """Cached tokens are compared in whole units of so many; within a unit, the earlier request goes first."""
    wait_tokens: float = 0.0
    """Cached tokens that a second of waiting is worth. 0: time spent waiting does not count."""

    def __post_init__(self) -> None:
        at_least("max_passes", self.max_passes, 0)
        at_least("granularity", self.granularity, 1)
        at_least("wait_tokens", self.wait_tokens, 0)


class Lpm(UrgentFirst):
    """By priority, then by tokens that device or host hold, then by arrival."""

    probes = True

    def __init__(self, config: LpmConfig, context: Context | None) -> None:
        self.max_passes = config.max_passes
        self._unit = config.granularity
        self._rate = config.wait_tokens

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[int, float]:
        cached = view.cached(request) // self._unit * self._unit
        # All that wait gain alike while time passes: who came later is behind by a constant.
        return request.priority, self._rate * request.arrival - cached
