"""Fewest uncached prompt tokens first, in the queue and among the prompts that share a step.

The mean time to a first token falls when short prompts need not wait for long ones. What a prompt has in the cache it
need not compute, so a long prompt with a long cached prefix is a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell import Context, RunningView, ScheduleView, WaitingView, share_out
from stepwell.settings import at_least
from stepwell_lpm.urgent import UrgentFirst


@dataclass(frozen=True, slots=True)
class ShortestPrefillFirstConfig:
    """The `[schedule]` table when `use = "shortest-prefill-first"`."""

    max_passes: int = 64
    """A request that later ones have passed this often goes first. 0 is arrival order."""
    output_weight: float = 0.0
    """Prompt tokens that a token of the longest allowed answer counts as. 0: only prompts count."""
    wait_tokens: float = 0.0
    """Tokens by which a request counts as shorter for each second that it waits. 0: time does not count."""
    oldest_share: float = 0.25
    """Share of a step's prompt tokens that the prompt under way for longest may use before shorter ones, 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("max_passes", "output_weight", "wait_tokens", "oldest_share"):
            at_least(name, getattr(self, name), 0)
        if self.oldest_share > 1:
            raise ValueError(f"oldest_share: {self.oldest_share} is more than 1")


class ShortestPrefillFirst(UrgentFirst):
    """By priority, then by tokens to compute, then by arrival."""

    probes = True

    def __init__(self, config: ShortestPrefillFirstConfig, context: Context | None) -> None:
        self.max_passes = config.max_passes
        self._output_weight = config.output_weight
        self._rate = config.wait_tokens
        self._oldest_share = config.oldest_share

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[int, float]:
        work = request.length - view.cached(request) + self._output_weight * request.max_new
        # All that wait gain alike while time passes: who came later is behind by a constant.
        return request.priority, work + self._rate * request.arrival

    def chunks(self, prompts: Sequence[RunningView], budget: int, view: ScheduleView) -> Sequence[int]:
        turns = sorted(range(len(prompts)), key=lambda at: (-prompts[at].priority, prompts[at].unplanned))
        return share_out(prompts, budget, turns, oldest=int(budget * self._oldest_share))
