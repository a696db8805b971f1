"""What tenants have been served: tokens computed and generated, of those that run and, fading, of those that have run.

A policy is told of nobody's end. Who ran or might have begun at the last look, and neither runs nor waits now, has
ended; what it was served since is estimated from those that run on. A look counts only if time has passed since the
last one, so the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from stepwell import RunningView, ScheduleView, WaitingView

FORGOTTEN = 1.0
"""Tokens below which what a tenant was served is of no account any more."""


@dataclass(slots=True)
class Tab:
    """What a request has been served as of the last look, and what it had yet to come."""

    request: WaitingView
    prompt: int | None = None
    """Tokens of its prompt that were not cached when it was tried; None: nobody asked."""
    before: int = 0
    """Tokens that it had generated before it gave way the last time; an older tab has them."""
    begun: bool = False
    """It has been seen to run."""
    generated: int = 0
    served: int = 0
    """Tokens computed and generated."""
    left: int = 0
    """Tokens of its prompt to compute."""
    expected: float = 0.0
    """Tokens that it would generate, as long as it has not begun."""

    def now(self, request: RunningView) -> int:
        """What it has been served by now."""
        prompt = request.length if self.prompt is None else self.prompt
        return max(0, prompt - request.unplanned) + request.generated - self.before


class Service:
    """`memory_s`: seconds in which what was served fades to a half; 0: only who runs counts."""

    def __init__(self, memory_s: float, weights: Mapping[str, float]) -> None:
        self._memory = memory_s
        self._weights = dict(weights)
        self._past: dict[str, float] = {}
        """What each tenant had been served by the last look, faded."""
        self._looked = -inf
        self._tabs: dict[int, Tab] = {}
        """By the request's rank of arrival."""

    def tried(self, request: WaitingView, view: ScheduleView) -> None:
        """A request may be admitted now. Of no account where nobody looks: somebody else makes the order."""
        if self._looked == -inf:
            return
        prompt = request.length - view.cached(request)
        self._tabs[request.order] = Tab(request, prompt, left=prompt, expected=view.expected(request))

    def look(self, view: ScheduleView, waits: Callable[[WaitingView], bool]) -> dict[str, float]:
        """Count for good what has been served since the last look; answers the shares of now."""
        passed = view.now - self._looked
        if passed <= 0:
            return self.shares(view.running)
        self._looked = view.now
        running = view.running
        if self._memory:
            self._fade(0.5 ** (passed / self._memory))
            self._close({request.order: request for request in running}, waits)
        self._tabs = {request.order: self._tab(request) for request in running}
        if not self._memory:
            return self.shares(running)
        for request in running:
            self._count(request)
        return self.shares(())  # there is nothing that has not been counted

    def shares(self, running: Sequence[RunningView]) -> dict[str, float]:
        """What each tenant has been served, by its weight; who has been served nothing is not there."""
        served = dict(self._past)
        for request in running:
            tab = self._tabs.get(request.order) or Tab(request)
            tenant = request.tenant or ""
            served[tenant] = served.get(tenant, 0.0) + tab.now(request) - tab.served
        return {tenant: tokens / self.weight(tenant) for tenant, tokens in served.items()}

    def weight(self, tenant: str) -> float:
        """A tenant's part beside others'; one of which nothing is said has 1."""
        return self._weights.get(tenant, 1.0)

    def _fade(self, kept: float) -> None:
        faded = {tenant: tokens * kept for tenant, tokens in self._past.items()}
        self._past = {tenant: tokens for tenant, tokens in faded.items() if tokens >= FORGOTTEN}

    def _close(self, running: Mapping[int, RunningView], waits: Callable[[WaitingView], bool]) -> None:
        """Add what those were served since the last look who run no more."""
        ended = [tab for order, tab in self._tabs.items() if order not in running and not waits(tab.request)]
        if not ended:
            return
        # All that decode get a token a step: nobody got more of them than the most that one got who runs on.
        begun = [tab for order, tab in self._tabs.items() if tab.begun and order in running]
        most = max((running[tab.request.order].generated - tab.generated for tab in begun), default=None)
        for tab in ended:
            likely = tab.request.max_new - tab.generated if tab.begun else tab.expected
            alone = 0 if tab.begun else likely
            self._add(tab.request, tab.left + (alone if most is None else min(likely, most)))

    def _tab(self, request: RunningView) -> Tab:
        tab = self._tabs.get(request.order) or Tab(request)
        if not tab.begun:
            tab.begun = True
            tab.before = request.generated if request.retractions and self._memory else 0
        return tab

    def _count(self, request: RunningView) -> None:
        """Add what a request that runs was served since the last look."""
        tab = self._tabs[request.order]
        served = tab.now(request)
        self._add(request, served - tab.served)
        tab.request, tab.served, tab.generated = request, served, request.generated
        tab.left = request.unplanned

    def _add(self, request: WaitingView, tokens: float) -> None:
        tenant = request.tenant or ""
        self._past[tenant] = self._past.get(tenant, 0.0) + tokens
