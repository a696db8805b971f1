"""How prompts under way share the tokens of a step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepwell import SchedulePolicy
from stepwell_testkit.kit import Kit
from stepwell_testkit.schedule.queues import PAGE, batch_of, whole
from stepwell_testkit.schedule.views import KitRunning, KitView


class Chunking(Kit):
    """What holds for chunks."""

    @pytest.mark.parametrize("seed", range(4))
    def test_chunks_keep_to_the_budget_and_the_prompts(self, policy: SchedulePolicy, seed: int) -> None:
        dice = random.Random(seed)
        for size in (1, 1, 2, 3, 9):
            for budget in (1, 15, 16, 100, 2048, 10**6):
                prompts = _prompts(dice, size)
                view = KitView(running=[*batch_of(dice, 3), *prompts])
                before = list(prompts)
                shares = whole(policy.chunks(prompts, budget, view))
                assert prompts == before, "the prompts that it was given have changed their order"
                assert len(shares) == size, "there is not one share for each prompt"
                assert {type(share) for share in shares} == {int}, f"{shares} are not whole numbers"
                assert min(shares) >= 0, "a share is less than nothing"
                assert sum(shares) <= budget, f"{sum(shares)} tokens of {budget} are shared out"
                for share, prompt in zip(shares, prompts, strict=True):
                    assert share <= prompt.unplanned, f"a share of {share} for {prompt.unplanned} tokens that are left"
                assert whole(policy.chunks(prompts, budget, view)) == shares, "asked twice, it shares otherwise"

    @pytest.mark.parametrize("length", [300, 2000])
    def test_the_oldest_prompt_ends_however_many_short_ones_come(self, policy: SchedulePolicy, length: int) -> None:
        """Four short ones could use up each step, and one comes for each that ends; an equal share takes five times."""
        budget, dice = 256, random.Random(length)
        prompts = [replace(prompt, unplanned=length if not at else 64) for at, prompt in enumerate(_prompts(dice, 5))]
        oldest, bound = prompts[0].order, 4 * (5 * length // budget + 4)
        for step in range(bound):
            shares = _handed_out(policy.chunks(prompts, budget, KitView(running=prompts)), prompts, budget)
            left = [
                replace(prompt, unplanned=prompt.unplanned - share)
                for prompt, share in zip(prompts, shares, strict=True)
                if share < prompt.unplanned
            ]
            if not any(prompt.order == oldest for prompt in left):
                return
            fresh = [replace(one, order=20_000 + 10 * step + at, unplanned=64) for at, one in enumerate(prompts)]
            prompts = [*left, *fresh[len(left) :]]
        pytest.fail(f"a prompt of {length} tokens is not done after {bound} steps of {budget}")


def _handed_out(asked: Sequence[int], prompts: Sequence[KitRunning], budget: int) -> list[int]:
    """What core makes of an answer: whole pages but for the end of a prompt, the rest for the first that can use it."""
    shares = []
    for share, prompt in zip(asked, prompts, strict=True):
        shares.append(share if share == prompt.unplanned else share // PAGE * PAGE)
    for at, prompt in enumerate(prompts):
        more = min(prompt.unplanned - shares[at], budget - sum(shares))
        shares[at] += more if more == prompt.unplanned - shares[at] else more // PAGE * PAGE
    return shares


def _prompts(dice: random.Random, size: int) -> list[KitRunning]:
    return [
        KitRunning(
            order,
            rid=f"prompt-{order}",
            arrival=float(order),
            length=4096,
            priority=dice.choice([0, 0, 1]),
            routing_key=dice.choice([None, "a", "b"]),
            tenant=dice.choice([None, "t", "u"]),
            unplanned=dice.choice([1, 15, 16, 64, 1000, 4096]),
        )
        for order in range(size)
    ]
