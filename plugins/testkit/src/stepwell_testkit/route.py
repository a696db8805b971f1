"""The kit of route policies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from stepwell import Replica, RoutePolicy
from stepwell_testkit.kit import Kit

KEYS = (None, "", "a", "session-17", "ключ", "\ud800", "k" * 512)
LENGTHS = (1, 17, 4_096, 2**20)
SCENES = 200
PATIENCE = 2_000
"""Requests after which none may have gone to a replica that has done nothing all the while."""

Scene = tuple[list[Replica], int, str | None]


def scenes(seed: int) -> Iterator[Scene]:
    """Replicas in all states, with prompts of all lengths."""
    draw = random.Random(seed)
    for _ in range(SCENES):
        length = draw.choice(LENGTHS)
        replicas = [
            Replica(
                name=f"{draw.choice('abc')}{at}",
                cached_tokens=draw.choice((0, draw.randrange(length), length - 1)),
                waiting_tokens=draw.choice((0, draw.randrange(10**6))),
                running=draw.choice((0, draw.randrange(500))),
                stored_tokens=draw.randrange(length),
                sent=draw.randrange(10**6),
            )
            for at in range(draw.choice((1, 2, 3, 8, 64)))
        ]
        yield replicas, length, draw.choice(KEYS)


class RouteKit(Kit):
    """Tests a `RoutePolicy`: give the fixture `policy`."""

    required: ClassVar[tuple[str, ...]] = ("policy",)

    def test_it_is_a_route_policy(self, policy: RoutePolicy) -> None:
        assert isinstance(policy, RoutePolicy)

    def test_it_chooses_one_of_the_replicas(self, policy: RoutePolicy) -> None:
        for replicas, length, key in scenes(1):
            chosen = policy.choose(tuple(replicas), length, key)
            assert isinstance(chosen, int) and not isinstance(chosen, bool), f"choose gave {chosen!r}"
            assert 0 <= chosen < len(replicas), f"choose gave {chosen} of {len(replicas)} replicas"

    def test_it_is_pure(self, policy: RoutePolicy) -> None:
        """Whichever process asks, and however often: front ends share no state."""
        asked = list(scenes(2))
        answers = [policy.choose(*scene) for scene in asked]
        order = list(range(len(asked)))
        for seed in range(2):
            random.Random(seed).shuffle(order)
            for at in order:
                assert policy.choose(*asked[at]) == answers[at], "the same question is answered differently later"

    def test_it_leaves_what_it_is_shown(self, policy: RoutePolicy) -> None:
        for replicas, length, key in scenes(3):
            before = list(replicas)
            policy.choose(replicas, length, key)
            assert replicas == before, "choose changed the replicas that it was shown"

    def test_it_chooses_a_replica_not_a_place(self, policy: RoutePolicy) -> None:
        """The order in which replicas are listed means nothing, where no two are alike but for their names."""
        for replicas, length, key in scenes(4):
            told = [replace(one, name=f"r{at}", sent=at * 7) for at, one in enumerate(replicas)]
            chosen = told[policy.choose(told, length, key)]
            again = told[::-1]
            assert again[policy.choose(again, length, key)] == chosen, "another order, another replica"

    def test_it_leaves_no_replica_idle_while_others_drown(self, policy: RoutePolicy) -> None:
        """Requests that share nothing, have no key, and do not end."""
        replicas = [Replica(f"r{at}", 0, 0, 0) for at in range(4)]
        for _ in range(PATIENCE):
            at = policy.choose(replicas, 1_000, None)
            one = replicas[at]
            replicas[at] = replace(
                one, waiting_tokens=one.waiting_tokens + 1_000, running=one.running + 1, sent=one.sent + 1
            )
            if all(other.sent for other in replicas):
                return
        idle = [other.name for other in replicas if not other.sent]
        raise AssertionError(f"of {PATIENCE} requests none went to {', '.join(idle)}, which had nothing to do")

    def test_a_prefix_that_all_share_draws_not_everything_to_one(self, policy: RoutePolicy) -> None:
        """One replica has the beginning of every prompt cached, and is given ever more to do."""
        replicas = [Replica("has-it", 900, 0, 0), Replica("idle", 0, 0, 0)]
        for _ in range(PATIENCE):
            at = policy.choose(replicas, 1_000, None)
            if at == 1:
                return
            one = replicas[0]
            replicas[0] = replace(
                one, waiting_tokens=one.waiting_tokens + 100, running=one.running + 1, sent=one.sent + 1
            )
        raise AssertionError(f"{PATIENCE} requests went to one replica while another had nothing to do")
