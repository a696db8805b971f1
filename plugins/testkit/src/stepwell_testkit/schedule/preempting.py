"""Who gives way to a waiting request: only who runs, and never back and forth."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stepwell import RunningView, SchedulePolicy, WaitingView
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.queues import batch_of, queue_of, request_of, running_of, waiting_of, whole
from stepwell_testkit.schedule.views import KitView

REST = 200
"""Admission passes after which 12 requests, of which 4 can run, no longer push each other out."""


class Preempting(Kit):
    """What holds for preempt."""

    @pytest.mark.parametrize("seed", range(4))
    def test_preempt_names_who_runs_once_each(self, policy: SchedulePolicy, seed: int) -> None:
        """Of those that it is asked about: others run, too, who gave way too often."""
        dice = random.Random(seed)
        everybody = batch_of(dice, 14)
        waiting, view = queue_of(dice, 30)
        view.running = everybody
        for asked in (everybody, everybody[::2], everybody[:1], []):
            before = list(asked)
            for request in waiting:
                named = whole(policy.preempt(request, asked, view))
                for victim in named:
                    assert any(victim is one for one in asked), f"{victim} is not among those it was asked about"
                assert len({id(victim) for victim in named}) == len(named), "somebody is named twice"
                again = whole(policy.preempt(request, asked, view))
                assert list(map(id, again)) == list(map(id, named)), "asked twice, it names others"
            assert asked == before, "those that run have changed their order"

    @pytest.mark.parametrize("seed", range(6))
    def test_who_gave_way_does_not_push_back(self, policy: SchedulePolicy, seed: int) -> None:
        """Where one makes room for another, that other need not make room for it, now or after it has computed."""
        dice = random.Random(seed)
        for _ in range(60):
            others = batch_of(dice, dice.randrange(4))
            runs = batch_of(dice, 1, first=dice.choice([0, 20_000]))[0]
            request = request_of(dice, 10, dice.choice([0, 3, 900]))
            if runs not in whole(policy.preempt(request, [*others, runs], _view(others, runs))):
                continue
            started = running_of(request)
            back = waiting_of(runs)
            named = whole(policy.preempt(back, [*others, started], _view(others, started)))
            assert started not in named, f"{request} and {runs} push each other out"

    @pytest.mark.parametrize("equal", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_preemption_comes_to_rest(self, policy: SchedulePolicy, equal: bool, seed: int) -> None:
        """Nothing finishes and nothing arrives: sooner or later those run who should, however often they may be asked.

        Core bounds how often one gives way; a policy that needs that bound throws away work for nothing.
        """
        dice = random.Random(seed)
        waiting: list[WaitingView] = [
            request_of(
                dice, order, 10 * order, priority=0 if equal else dice.randrange(-2, 3), tenant=dice.choice("tuvw")
            )
            for order in range(12)
        ]
        running: list[RunningView] = []
        for _ in range(REST):
            view = KitView(running=running)
            order = [one for one in whole(policy.order(waiting, view)) if len(running) < 2 or policy.admit(one, view)]
            if not order:
                return
            first = order[0]
            gone = [] if len(running) < 4 else whole(policy.preempt(first, running, view))[:1]
            if len(running) == 4 and not gone:
                return
            running = [one for one in running if one not in gone] + [running_of(first)]
            waiting = [one for one in waiting if one is not first] + [waiting_of(one) for one in gone]
            waiting.sort(key=lambda one: one.order)
        pytest.fail(f"after {REST} passes requests still push each other out")


def _view(others: Sequence[RunningView], one: RunningView) -> KitView:
    return KitView(running=[*others, one])
