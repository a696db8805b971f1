"""What tenants have been served: tokens computed and generated, of those that run and, fading, of those that have run.

A policy is told of nobody's end. Who ran at the last look and runs no more has ended or gave way, and what it was
served by then is remembered for its tenant. A look counts only if time has passed since the last one, so the same
question has the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell import RunningView, ScheduleView

FORGOTTEN = 1.0
"""Tokens below which what a tenant was served is of no account any more."""


@dataclass(slots=True)
class Tab:
    """What a request that runs has been served, as of the last look."""

    tenant: str
    before: int
    """Tokens that it had generated before it gave way the last time; they are on an older tab."""
    served: float = 0.0


class Service:
    """`memory_s`: seconds in which what was served fades to a half; 0: only who runs counts."""

    def __init__(self, memory_s: float, weights: Mapping[str, float]) -> None:
        self._memory = memory_s
        self._weights = dict(weights)
        self._past: dict[str, float] = {}
        self._looked = float("-inf")
        self._tabs: dict[int, Tab] = {}
        """By the request's rank of arrival."""
        self._uncached: dict[int, int] = {}
        """Prompt tokens to compute of those that were tried, by rank of arrival."""

    def tried(self, order: int, uncached: int) -> None:
        """A request may be admitted now, and would have so many tokens of its prompt to compute."""
        self._uncached[order] = uncached

    def look(self, view: ScheduleView) -> None:
        """Count for good what has been served since the last look."""
        passed = view.now - self._looked
        if passed <= 0:
            return
        running = view.running
        there = {request.order for request in running}
        self._uncached = {order: tokens for order, tokens in self._uncached.items() if order in there}
        if self._memory:
            self._fade(0.5 ** (passed / self._memory))
            for order, tab in self._tabs.items():
                if order not in there:
                    self._past[tab.tenant] = self._past.get(tab.tenant, 0.0) + tab.served
            self._tabs = {request.order: self._tab(request) for request in running}
        self._looked = view.now

    def shares(self, running: Sequence[RunningView]) -> dict[str, float]:
        """What each tenant has been served, by its weight; who has been served nothing is not there."""
        served = dict(self._past)
        for request in running:
            tenant = request.tenant or ""
            served[tenant] = served.get(tenant, 0.0) + self._served(request)
        return {tenant: tokens / self.weight(tenant) for tenant, tokens in served.items()}

    def weight(self, tenant: str) -> float:
        """A tenant's part beside others'; one of which nothing is said has 1."""
        return self._weights.get(tenant, 1.0)

    def _fade(self, kept: float) -> None:
        faded = {tenant: tokens * kept for tenant, tokens in self._past.items()}
        self._past = {tenant: tokens for tenant, tokens in faded.items() if tokens >= FORGOTTEN}

    def _tab(self, request: RunningView) -> Tab:
        tab = self._tabs.get(request.order)
        if tab is None:
            tab = Tab(request.tenant or "", request.generated if request.retractions else 0)
            self._tabs[request.order] = tab
        tab.served = self._served(request)
        return tab

    def _served(self, request: RunningView) -> float:
        prompt = self._uncached.get(request.order, request.length) - request.unplanned
        tab = self._tabs.get(request.order)
        return max(0, prompt) + request.generated - (tab.before if tab else 0)
