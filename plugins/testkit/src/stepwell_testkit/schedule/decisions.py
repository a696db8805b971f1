"""Whether a request may go, whether others may pass one that does not fit, and who is retracted."""

from __future__ import annotations

import copy
import random

import pytest

from stepwell import RunningView, SchedulePolicy
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.queues import batch_of, queue_of, running_of, whole
from stepwell_testkit.schedule.views import KitRequest, KitRunning, KitView

FARTHEST = 512
"""Requests that do not fit, one behind another, of which some policy may look past all."""


class Decisions(Kit):
    """What holds for admit, look_past and victim."""

    @pytest.mark.parametrize("seed", range(3))
    def test_admit_says_yes_or_no_and_the_same_again(self, policy: SchedulePolicy, seed: int) -> None:
        waiting, view = queue_of(random.Random(seed), 40)
        fresh = copy.deepcopy(policy)
        first = [policy.admit(request, view) for request in waiting]
        assert {type(answer) for answer in first} == {bool}, "an answer is neither True nor False"
        whole(policy.order(waiting, view))
        assert [policy.admit(request, view) for request in waiting] == first, "asked twice, it decides otherwise"
        assert [fresh.admit(request, view) for request in reversed(waiting)] == first[::-1], "it matters who asks first"

    @pytest.mark.parametrize("alike", [False, True])
    @pytest.mark.parametrize("seed", range(4))
    def test_admit_lets_somebody_go_while_others_still_run(
        self, policy: SchedulePolicy, alike: bool, seed: int
    ) -> None:
        """Nobody new arrives, one that runs finishes every step: before the last has, someone may go beside it.

        Core admits where nothing runs; a policy that waits for that makes a batch of one.
        """
        dice = random.Random(seed)
        waiting, view = queue_of(dice, 30)
        if alike:
            waiting = [KitRequest(order, tenant="t", routing_key="a") for order in range(30)]
        running: list[RunningView] = [
            KitRunning(100 + order, tenant="t", routing_key="a", generated=5) if alike else request
            for order, request in enumerate(batch_of(dice, 8, first=100))
        ]
        together = 0
        while waiting:
            view.running = running = running[1:]
            go = next(
                (one for one in whole(policy.order(waiting, view)) if not running or policy.admit(one, view)), None
            )
            assert go or running, "the order leaves out everybody who waits"
            if go is not None:
                together += bool(running)
                waiting = [request for request in waiting if request is not go]
                running = [*running, running_of(go)]
        assert together >= 15, f"{30 - together} of 30 may go only when nothing else runs"

    @pytest.mark.parametrize("seed", range(3))
    def test_look_past_ends_and_never_begins_again(self, policy: SchedulePolicy, seed: int) -> None:
        """With more misfits the answer goes from True to False once, and it gets there."""
        waiting, view = queue_of(random.Random(seed), 6)
        for request in waiting:
            answers = [policy.look_past(request, misfits, view) for misfits in range(1, FARTHEST + 1)]
            assert {type(answer) for answer in answers} <= {bool}, "an answer is neither True nor False"
            assert not answers[-1], f"it looks past {FARTHEST} requests that do not fit"
            assert answers == sorted(answers, reverse=True), "it stops at fewer misfits than those it looks past"
            assert [policy.look_past(request, misfits, view) for misfits in (1, 2, 3)] == answers[:3]

    @pytest.mark.parametrize("seed", range(4))
    def test_the_victim_is_one_that_runs(self, policy: SchedulePolicy, seed: int) -> None:
        """One of those that it is asked about: others may run that gave way too often."""
        dice = random.Random(seed)
        for size in (1, 2, 3, 17):
            everybody = batch_of(dice, 2 * size)
            running, view = everybody[seed % 2 :: 2], KitView(running=everybody)
            before = list(running)
            victim = policy.victim(running, view)
            assert any(victim is request for request in running), f"{victim} is not among those it was asked about"
            assert running == before, "those that run have changed their order"
            assert policy.victim(running, view) is victim, "asked twice, it gives another victim"
