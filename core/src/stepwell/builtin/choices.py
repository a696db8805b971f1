"""A schedule policy of several: each decision from the policy that takes it best.

    [schedule]
    use = "choices"
    [schedule.order]
    use = "lpm"
    [schedule.preempt]
    use = "fair"

Decisions that name no policy are those of the order's own, which sees the same requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from stepwell.abc.ranked import Groups, Rank, RankedPolicy
from stepwell.abc.schedule import RunningView, SchedulePolicy, ScheduleView, WaitingView
from stepwell.errors import PluginError, StepwellError
from stepwell.offers import Context, Part


@dataclass(frozen=True, slots=True)
class ChoicesConfig:
    """The `[schedule]` table when `use = "choices"`."""

    order: Part[SchedulePolicy]
    """Whose order it is, with its aging bound: `[schedule.order]`."""
    admit: Part[SchedulePolicy] | None = None
    """Who may hold a request back: `[schedule.admit]`."""
    look_past: Part[SchedulePolicy] | None = None
    """Who says whether those behind a request that does not fit are tried: `[schedule.look_past]`."""
    preempt: Part[SchedulePolicy] | None = None
    """Who says which running requests give way to a waiting one: `[schedule.preempt]`."""
    victim: Part[SchedulePolicy] | None = None
    """Who says which running request is retracted when pages run out: `[schedule.victim]`."""
    chunks: Part[SchedulePolicy] | None = None
    """Who shares a step's tokens among prompts: `[schedule.chunks]`."""


def choices(config: ChoicesConfig, context: Context) -> SchedulePolicy:
    """The policies that the config names as one."""
    order = _made("order", config.order, context)
    named = {name: getattr(config, name) for name in ("admit", "look_past", "preempt", "victim", "chunks")}
    others = {name: _made(name, part, context) for name, part in named.items() if part is not None}
    if not others:
        return order
    preempts = type(others.get("preempt", order)).preempt is not SchedulePolicy.preempt
    if isinstance(order, RankedPolicy):
        return (PreemptingRankedChoices if preempts else RankedChoices)(order, **others)
    return (PreemptingChoices if preempts else Choices)(order, **others)


class Choices(SchedulePolicy):
    """Asks another policy for each decision."""

    def __init__(
        self,
        order: SchedulePolicy,
        *,
        admit: SchedulePolicy | None = None,
        look_past: SchedulePolicy | None = None,
        preempt: SchedulePolicy | None = None,
        victim: SchedulePolicy | None = None,
        chunks: SchedulePolicy | None = None,
    ) -> None:
        self.max_passes = order.max_passes
        self._order = order
        self._admit = admit or order
        self._look_past = look_past or order
        self._preempt = preempt or order
        self._victim = victim or order
        self._chunks = chunks or order
        self.remembers = any(one.remembers for one in (order, admit, look_past, preempt, victim, chunks) if one)

    def order(self, waiting: Sequence[WaitingView], view: ScheduleView) -> Iterable[WaitingView]:
        return self._order.order(waiting, view)

    def admit(self, request: WaitingView, view: ScheduleView) -> bool:
        return self._admit.admit(request, view)

    def look_past(self, request: WaitingView, misfits: int, view: ScheduleView) -> bool:
        return self._look_past.look_past(request, misfits, view)

    def victim(self, running: Sequence[RunningView], view: ScheduleView) -> RunningView:
        return self._victim.victim(running, view)

    def chunks(self, prompts: Sequence[RunningView], budget: int, view: ScheduleView) -> Sequence[int]:
        return self._chunks.chunks(prompts, budget, view)


class PreemptingChoices(Choices):
    """Choices of which one may say who gives way. Core need not ask others."""

    def preempt(
        self, request: WaitingView, running: Sequence[RunningView], view: ScheduleView
    ) -> Sequence[RunningView]:
        return self._preempt.preempt(request, running, view)


class RankedChoices(Choices, RankedPolicy):
    """Choices whose order is told request by request, and kept between passes as it would be alone."""

    _order: RankedPolicy

    def __init__(self, order: RankedPolicy, **others: SchedulePolicy) -> None:
        super().__init__(order, **others)
        self.probes = order.probes

    def place(self, request: WaitingView, view: ScheduleView) -> tuple[Hashable, Rank]:
        return self._order.place(request, view)

    def merge(self, groups: Groups, view: ScheduleView) -> Iterable[WaitingView]:
        return self._order.merge(groups, view)


class PreemptingRankedChoices(PreemptingChoices, RankedChoices):
    """Both."""


def _made(name: str, part: Part[SchedulePolicy], context: Context) -> SchedulePolicy:
    """One of the policies; PluginError that says where it is named if it raises or is none."""
    where = f"schedule.{name}.use = {part.offer.name!r}"
    try:
        policy: object = part.make(context)
    except StepwellError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(policy, SchedulePolicy):
        raise PluginError(f"{where}: made a {type(policy).__name__}, which is no SchedulePolicy")
    return policy
