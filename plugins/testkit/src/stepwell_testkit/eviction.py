"""The kit of eviction policies."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from typing import ClassVar

import pytest

from stepwell import EvictionPolicy, Segment, take_pages
from stepwell_testkit.kit import Kit
from stepwell_testkit.ledger import Ledger


class EvictionKit(Kit):
    """Tests an `EvictionPolicy`: give the fixture `policy`, a new one that knows no segment.

    The kit copies the policy (`copy.deepcopy`) where it needs two alike; a pure policy can be copied.
    """

    required: ClassVar[tuple[str, ...]] = ("policy",)

    @pytest.fixture
    def ledger(self, policy: EvictionPolicy) -> Ledger:
        """The policy, told what happens by core's stand-in."""
        return Ledger(policy)

    def test_it_is_an_eviction_policy(self, policy: EvictionPolicy) -> None:
        assert isinstance(policy, EvictionPolicy)

    def test_without_candidates_it_proposes_none(self, ledger: Ledger) -> None:
        assert list(ledger.policy.victims(10)) == []
        ledger.remove(ledger.insert())
        assert list(ledger.policy.victims(10)) == []

    def test_it_proposes_until_there_are_pages_enough(self, ledger: Ledger) -> None:
        for _ in range(10):
            ledger.insert(pages=3)
        for pages in (1, 3, 4, 29, 30):
            ledger.propose(pages)

    def test_fewer_pages_come_back_only_when_there_are_no_more(self, ledger: Ledger) -> None:
        segments = [ledger.insert(pages=i % 4 + 1) for i in range(20)]
        for segment in segments[::2]:
            ledger.hit(segment)
        assert len(ledger.propose(1_000)) == 20

    def test_a_proposal_changes_nothing(self, ledger: Ledger) -> None:
        segments = [ledger.insert(pages=2) for _ in range(12)]
        for segment in segments[3:6] * 2:
            ledger.hit(segment)
        first = list(ledger.policy.victims(24))
        for pages in (1, 24, 5, 1_000):
            list(ledger.policy.victims(pages))
            next(iter(ledger.policy.victims(pages)))  # read in part, as core does
        assert list(ledger.policy.victims(24)) == first

    def test_a_removed_segment_is_not_proposed(self, ledger: Ledger) -> None:
        segments = [ledger.insert() for _ in range(8)]
        for segment in segments[:4]:
            ledger.hit(segment)
        for segment in (segments[0], segments[7], segments[3]):
            ledger.remove(segment)
            ledger.settle()

    def test_a_second_removal_is_no_error(self, ledger: Ledger) -> None:
        segment = ledger.insert()
        ledger.insert()
        ledger.remove(segment)
        ledger.policy.on_remove(segment)
        ledger.settle()

    def test_a_removal_of_what_was_never_a_candidate_is_no_error(self, ledger: Ledger) -> None:
        lower = ledger.insert(pages=4)
        ledger.remove(ledger.split(lower))
        ledger.policy.on_remove(Segment(1))
        ledger.settle()

    def test_a_second_announcement_adds_nothing(self, ledger: Ledger) -> None:
        """Core announces a segment again when pages come back to it."""
        segment = ledger.insert()
        ledger.insert()
        ledger.renew(segment)
        ledger.settle()
        ledger.remove(segment)
        ledger.settle()

    def test_a_hit_after_removal_makes_a_candidate_again(self, ledger: Ledger) -> None:
        segment = ledger.insert()
        ledger.insert()
        ledger.cover(segment)
        ledger.hit(segment)
        ledger.settle()

    def test_an_exposed_segment_is_a_candidate_once(self, ledger: Ledger) -> None:
        parent = ledger.insert()
        ledger.cover(parent)
        ledger.insert()
        ledger.expose(parent)
        ledger.settle()
        ledger.expose(parent)
        ledger.settle()

    def test_exposing_what_a_hit_has_listed_lists_it_once(self, ledger: Ledger) -> None:
        parent = ledger.insert()
        ledger.cover(parent)
        ledger.hit(parent)
        ledger.expose(parent)
        ledger.settle()
        ledger.remove(parent)
        ledger.settle()

    def test_a_split_keeps_the_tail_and_adds_no_candidate(self, ledger: Ledger) -> None:
        lower = ledger.insert(pages=6)
        ledger.insert()
        ledger.hit(lower)
        upper = ledger.split(lower)
        ledger.settle()
        ledger.remove(lower)
        ledger.expose(upper)
        ledger.settle()

    def test_a_split_of_what_is_no_candidate_is_no_error(self, ledger: Ledger) -> None:
        lower = ledger.insert(pages=6)
        ledger.cover(lower)
        upper = ledger.split(lower)
        ledger.settle()
        ledger.hit(upper)
        ledger.hit(lower)
        ledger.settle()

    def test_segments_may_grow_and_shrink(self, ledger: Ledger) -> None:
        first, second = ledger.insert(pages=8), ledger.insert(pages=8)
        first.pages = second.pages = 1
        assert len(ledger.propose(2)) == 2
        first.pages = second.pages = 20
        assert len(ledger.propose(2)) == 1

    @pytest.mark.parametrize("seed", range(6))
    def test_random_lives_keep_to_the_contract(self, policy: EvictionPolicy, seed: int) -> None:
        Ledger(policy, seed).live(600)

    @pytest.mark.parametrize("seed", range(3))
    def test_equal_calls_give_equal_answers(self, policy: EvictionPolicy, seed: int) -> None:
        one, other = Ledger(policy, seed), Ledger(copy.deepcopy(policy), seed)
        one.live(400)
        other.live(400)
        assert one.proposals == other.proposals

    def test_two_policies_share_nothing(self, policy: EvictionPolicy) -> None:
        """One is made for each group and tier."""
        one, other = Ledger(policy), Ledger(copy.deepcopy(policy))
        one.insert()
        assert list(other.policy.victims(1)) == []
        other.insert()
        one.settle()
        other.settle()

    def test_removed_segments_are_let_go(self, policy: EvictionPolicy) -> None:
        """A memory of what left (ghosts) is bounded by what is resident."""
        ledger = Ledger(policy)
        gone: list[weakref.ref[Segment]] = []
        for _ in range(100):
            ledger.insert()
        for turn in range(5_000):
            segment = ledger.insert()
            if turn % 3 == 0:
                ledger.hit(segment)
            victim = next(iter(policy.victims(1)))
            gone.append(weakref.ref(victim))
            ledger.remove(victim)
            del segment, victim
        gc.collect()
        alive = sum(ref() is not None for ref in gone)
        assert alive <= 1_000, f"{alive} of {len(gone)} removed segments are kept alive beside 100 resident ones"

    def test_an_eviction_costs_the_same_among_many_segments(self, policy: EvictionPolicy) -> None:
        """CPU time of a batch of evictions among 10,000 segments against 625; linear work would take 16 times."""
        few, many = copy.deepcopy(policy), policy
        ratios = []
        for _ in range(3):
            ratios.append(_batch_cost(many, 10_000) / _batch_cost(few, 625))
            if ratios[-1] < 5:
                return
        pytest.fail(f"16 times the segments make an eviction {min(ratios):.1f} times as expensive")


def _batch_cost(policy: EvictionPolicy, segments: int) -> float:
    """Least CPU seconds of evicting 64 pages and inserting as many, with `segments` resident."""
    ledger = Ledger(policy)
    for at in range(segments):
        segment = ledger.insert(pages=at % 8 + 1, priority=at % 5)
        for _ in range(at % 3):
            ledger.hit(segment)
    best = float("inf")
    for _ in range(20):
        fresh = [Segment(4, ledger.clock) for _ in range(16)]
        start = time.thread_time()
        for victim in take_pages(policy.victims(64), 64):
            policy.on_remove(victim)
        for segment in fresh:
            policy.on_insert(segment)
        best = min(best, time.thread_time() - start)
    return best
