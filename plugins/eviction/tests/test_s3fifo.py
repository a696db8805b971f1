"""S3-FIFO."""

import gc
import random
from weakref import ref

import pytest

from stepwell import Segment
from stepwell_eviction import S3Fifo, S3FifoConfig
from stepwell_testkit import EvictionKit


class TestS3Fifo(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return S3Fifo(S3FifoConfig(), context)


class TestS3FifoThatIsHardToPlease(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return S3Fifo(S3FifoConfig(small=0.5, promote=3), context)


class TestS3FifoOfMainOnly(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return S3Fifo(S3FifoConfig(small=0.0), context)


class TestS3FifoOfSmallLast(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return S3Fifo(S3FifoConfig(small=1.0), context)


@pytest.fixture
def cache(little):
    return little(S3Fifo(S3FifoConfig(), None), room=10)


def test_newcomers_push_out_only_each_other(cache, little, lru):
    def hot_hits(cache):
        cache.all("x", "x", "y", "y")
        return sum(cache.all(*(f"{turn}-{i}" for i in range(14))) + cache.all("x", "y") for turn in range(5))

    assert hot_hits(little(lru, room=10)) == 0
    assert hot_hits(cache) == 10


def test_small_keeps_its_share_while_main_has_more_than_its_own(little):
    cache = little(S3Fifo(S3FifoConfig(small=0.5), None), room=10)
    cache.all(*"abcdefgh", *"abcdefgh", "new", "newer")
    # Two of ten are in small, which may keep five: main pays first.
    assert cache.order[:4] == ["a", "b", "c", "d"]


def test_a_hit_in_main_earns_another_round(cache):
    cache.all(*"abcd", *"abcd")
    cache.all("a", "a", "c")
    assert cache.order == ["b", "d", "c", "a"]


def test_rounds_are_used_up_as_the_queue_moves_on(cache):
    """A proposal changes nothing, an eviction does what the original's hand does on its way to the victim."""
    cache.all(*"abcd", *"abcd", "a", "c")
    assert cache.evict() == "b"  # a, in front of it, has had its extra round
    assert cache.order == ["d", "a", "c"]
    assert cache.evict() == "d"  # c has, too
    assert cache.order == ["a", "c"]


def test_the_order_proposed_is_the_order_in_which_all_would_leave(cache):
    dice = random.Random(4)
    cache.room = 60
    for _ in range(400):
        cache.use(dice.randrange(80) if dice.random() < 0.5 else dice.randrange(10))
    proposed = cache.order
    assert len(proposed) == 60
    assert [cache.evict() for _ in range(60)] == proposed


def test_promotion_needs_as_many_uses_as_said(little):
    cache = little(S3Fifo(S3FifoConfig(promote=2, small=0.0), None), room=10)
    cache.all(*"abc", "a", "b", "b")
    assert cache.order == ["a", "c", "b"], "one use leaves a where it stands, two take b to the main queue"


def test_what_left_and_comes_back_goes_to_the_main_queue():
    """A segment that left device for host and is loaded again."""
    policy = S3Fifo(S3FifoConfig(), None)
    segments = [Segment(1) for _ in range(6)]
    for segment in segments:
        policy.on_insert(segment)
    back = segments[0]
    policy.on_remove(back)
    policy.on_insert(Segment(1))
    policy.on_insert(back)
    assert list(policy.victims(100))[-1] is back


def test_ghosts_hold_no_segment_and_are_no_more_than_what_is_resident():
    policy = S3Fifo(S3FifoConfig(), None)
    resident = [Segment(1) for _ in range(10)]
    for segment in resident:
        policy.on_insert(segment)
    gone = []
    for _ in range(100):
        segment = Segment(1)
        policy.on_insert(segment)
        policy.on_remove(segment)
        gone.append(ref(segment))
    del segment
    gc.collect()
    assert not any(ghost() for ghost in gone)
    assert len(policy._ghosts) == 10
    for segment in resident:
        policy.on_remove(segment)
    assert len(policy._ghosts) == 0


def test_an_exposed_segment_is_the_oldest_of_its_queue(cache):
    cache.all("once", "parent", "peer", "peer", "parent", "x")
    for name in ("once", "parent"):
        cache.policy.on_remove(cache.held[name])
        cache.policy.on_expose(cache.held[name])
    assert cache.order == ["once", "x", "parent", "peer"]


@pytest.mark.parametrize(("settings", "text"), [({"small": 2.0}, "small: 2.0"), ({"promote": 0}, "promote: 0")])
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        S3FifoConfig(**settings)
