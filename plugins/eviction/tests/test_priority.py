"""Eviction by priority, and the queues behind it."""

import random

import pytest

from stepwell import NoConfig, Segment
from stepwell_eviction import Priority, stepwell_evictors
from stepwell_eviction.ranked import RankedQueues
from stepwell_testkit import EvictionKit


class TestPriority(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Priority(NoConfig(), context)


@pytest.fixture
def cache(little):
    return little(Priority(NoConfig(), None))


def test_less_urgent_first_then_least_recent(cache):
    for name, priority in (("a", 1), ("b", 0), ("c", -1), ("d", 0), ("e", 1)):
        cache.use(name, priority)
    cache.use("b")
    assert cache.order == ["c", "d", "b", "a", "e"]


def test_one_class_is_lru(cache):
    cache.all(*"abcd", "b", "a")
    assert cache.order == ["c", "d", "b", "a"]


def test_an_urgent_use_makes_a_segment_urgent(cache):
    cache.all(*"abc")
    cache.use("a", priority=5)
    assert cache.order == ["b", "c", "a"]
    cache.use("a", priority=0)
    assert cache.order == ["b", "c", "a"]


def test_whatever_others_do_the_urgent_stay(cache):
    for name in "xyz":
        cache.use(name, priority=1)
    for at in range(100):
        cache.use(at)
    assert cache.all(*"xyz") == 3


def test_an_exposed_segment_is_the_oldest_of_its_class(cache):
    for name, priority in (("low", 0), ("parent", 1), ("peer", 1)):
        cache.use(name, priority)
    cache.use("parent", 1)
    cache.policy.on_remove(cache.held["parent"])
    cache.policy.on_expose(cache.held["parent"])
    assert cache.order == ["low", "parent", "peer"]


def test_queues_agree_with_a_sorted_list():
    dice = random.Random(2)
    queues, right = RankedQueues(), {}
    segments = [Segment(1) for _ in range(40)]
    for turn in range(2_000):
        segment, rank = dice.choice(segments), dice.randrange(-3, 6)
        match dice.randrange(4):
            case 0 | 1:
                queues.put(segment, rank)
                right[segment] = (rank, turn)
            case 2:
                queues.put_first(segment, rank)
                right[segment] = (rank, -turn)
            case 3:
                assert queues.drop(segment) == right.pop(segment, (None,))[0]
        assert (segment in queues) == (segment in right)
        assert queues.lowest == min((rank for rank, _ in right.values()), default=None)
        if turn % 20 == 0:
            assert list(queues) == sorted(right, key=right.__getitem__)


def test_the_offers_are_named_as_the_readme_says(context):
    offers = list(stepwell_evictors())
    assert [offer.name for offer in offers] == ["lfu", "slru", "s3fifo", "priority"]
    for offer in offers:
        one, other = (offer.make(offer.config(), context) for _ in range(2))
        one.on_insert(Segment(1))
        assert len(list(one.victims(1))) == 1
        assert list(other.victims(1)) == []
