"""The kit of write policies."""

from __future__ import annotations

import random
from itertools import product
from typing import ClassVar

from stepwell import Cause, Decision, Edge, WritePolicy
from stepwell_testkit.kit import Kit

USES = (*range(1, 130), 1_000, 10**9)


class WriteKit(Kit):
    """Tests a `WritePolicy`: give the fixture `policy`."""

    required: ClassVar[tuple[str, ...]] = ("policy",)

    def test_it_is_a_write_policy(self, policy: WritePolicy) -> None:
        assert isinstance(policy, WritePolicy)

    def test_it_decides_on_every_edge_cause_and_use(self, policy: WritePolicy) -> None:
        for edge, cause, uses in product(Edge, Cause, USES):
            decision = policy.decide(edge, cause, uses)
            assert isinstance(decision, Decision), f"decide({edge}, {cause}, {uses}) gave {decision!r}"

    def test_it_is_pure(self, policy: WritePolicy) -> None:
        questions = list(product(Edge, Cause, USES))
        answers = {question: policy.decide(*question) for question in questions}
        for seed in range(3):
            random.Random(seed).shuffle(questions)
            for question in questions:
                assert policy.decide(*question) is answers[question], f"{question} is answered differently later"

    def test_more_uses_never_withdraw_a_copy(self, policy: WritePolicy) -> None:
        for edge, cause in product(Edge, Cause):
            copied_at = None
            for uses in USES:
                now = policy.decide(edge, cause, uses) is Decision.NOW
                assert now or copied_at is None, (
                    f"{edge} on {cause} copies after {copied_at} uses and no longer after {uses}"
                )
                copied_at = uses if now and copied_at is None else copied_at

    def test_its_reserve_is_a_share(self, policy: WritePolicy) -> None:
        assert isinstance(policy.reserve, int | float) and not isinstance(policy.reserve, bool)
        assert 0.0 <= policy.reserve <= 1.0

    def test_its_reserve_stays(self, policy: WritePolicy) -> None:
        before = policy.reserve
        for edge, cause, uses in product(Edge, Cause, USES):
            policy.decide(edge, cause, uses)
        assert policy.reserve == before
