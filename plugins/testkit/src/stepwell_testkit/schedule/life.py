"""Whole lives of queues in a little core: nobody is passed too often, and everybody ends."""

from __future__ import annotations

import random

import pytest

from stepwell import SchedulePolicy
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.little import Job, LittleCore
from stepwell_testkit.schedule.queues import PAGE, rid_of


class Lives(Kit):
    """What holds whatever arrives."""

    def test_b120_a_cold_request_runs_within_the_bound(self, policy: SchedulePolicy) -> None:
        """One is admitted a step, one with everything cached arrives a step: core's aging gets the cold one in."""
        steps = policy.max_passes + 2
        core = LittleCore(policy, pages=8, slots=1, hits={"cold": 0})
        core.arrive(Job(0, "cold", length=100))
        for step in range(1, steps + 1):
            warm = Job(step, f"warm-{step}", arrival=float(step), length=100)
            core.hits[warm.rid] = 96
            core.arrive(warm)
            core.now = float(step)
            admitted = core.admit()
            assert admitted is not None
            if admitted.rid == "cold":
                return
            core.running.clear()
        pytest.fail(f"the cold request did not run in {steps} steps; the bound is {policy.max_passes} passes")

    @pytest.mark.parametrize("seed", range(3))
    def test_nobody_is_passed_more_often_than_the_bound(self, policy: SchedulePolicy, seed: int) -> None:
        """One is admitted a step beside others that run on; arrivals come in bursts."""
        dice = random.Random(seed)
        core = LittleCore(policy, pages=10_000, slots=3)
        for step in range(300):
            core.now = float(step)
            for _ in range(dice.choice([0, 1, 1, 2])):
                _arrive(core, dice)
            core.asked = False
            core.admit()
            core.running = core.running[-2:]
        while core.waiting:
            core.running = core.running[1:]
            core.asked = False
            core.admit()

    @pytest.mark.parametrize("urgent", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_everybody_ends_in_a_pool_that_is_too_small(self, policy: SchedulePolicy, urgent: bool, seed: int) -> None:
        """Prompts and answers are many times what fits; they preempt and retract each other as the policy says."""
        dice = random.Random(seed)
        core = LittleCore(policy, pages=40)
        work = 0
        for _ in range(24):
            job = _arrive(core, dice, blocks=20, new=160)
            if not urgent:
                job.priority = 0
            work += 4 * (job.length // core.budget + 1) + job.max_new
            for _ in range(dice.randrange(6)):
                core.step()
        for _ in range(4 * work):
            if not core.waiting and not core.running:
                break
            core.step()
        left = len(core.waiting) + len(core.running)
        assert not left, f"{left} of 24 requests do not end"


def _arrive(core: LittleCore, dice: random.Random, blocks: int = 64, new: int = 32) -> Job:
    order = len(core.hits)
    job = Job(
        order,
        rid_of(order),
        arrival=core.now,
        length=PAGE * dice.randint(1, blocks),
        max_new=dice.randint(1, new),
        priority=dice.choice([0, 0, 0, 1, -1, 5]),
        routing_key=dice.choice([None, "a", "b", "c"]),
        tenant=dice.choice([None, "t", "u"]),
    )
    core.hits[job.rid] = dice.randrange(0, job.length, PAGE)
    core.arrive(job)
    return job
