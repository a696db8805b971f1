"""Segmented LRU."""

import pytest

from stepwell_eviction import Slru, SlruConfig
from stepwell_testkit import EvictionKit


class TestSlru(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Slru(SlruConfig(), context)


class TestSlruWithoutProtection(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Slru(SlruConfig(protected=0.0), context)


class TestSlruOfProtectedOnly(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Slru(SlruConfig(protected=1.0), context)


@pytest.fixture
def cache(little):
    return little(Slru(SlruConfig(), None))


def test_what_was_used_once_leaves_first(cache):
    cache.all("a", "b", "c", "a", "d", "c")
    assert cache.order == ["b", "d", "a", "c"]


def test_prompts_seen_once_push_out_only_each_other(cache, little, lru):
    def hot_hits(cache):
        cache.all(*"abcdef", *"xyxy")
        return sum(cache.all(*(f"{turn}-{i}" for i in range(12))) + cache.all("x", "y") for turn in range(5))

    assert hot_hits(little(lru)) == 0
    assert hot_hits(cache) == 10


def test_the_protected_share_is_kept(little):
    cache = little(Slru(SlruConfig(protected=0.5), None))
    cache.all(*"abcdefgh", *"abcdefgh")
    # e to h were used last and are protected; a to d were, and fell back in that order.
    assert cache.order == list("abcdefgh")
    cache.use("new")
    assert cache.order[:4] == ["b", "c", "d", "new"]


def test_all_may_be_protected_or_none(little):
    everything = little(Slru(SlruConfig(protected=1.0), None))
    nothing = little(Slru(SlruConfig(protected=0.0), None))
    for cache in (everything, nothing):
        cache.all(*"abc", *"ba")
    assert everything.order == ["c", "b", "a"]
    assert nothing.order == ["c", "b", "a"], "which is LRU"
    for cache in (everything, nothing):
        cache.use("d")
    assert everything.order == ["c", "d", "b", "a"]
    assert nothing.order == ["c", "b", "a", "d"]


def test_an_exposed_segment_is_the_oldest_of_its_part(cache):
    cache.all("once", "parent", "peer", "peer", "parent", "x", "y", "z")
    for name in ("once", "parent"):
        cache.policy.on_remove(cache.held[name])
        cache.policy.on_expose(cache.held[name])
    assert cache.order == ["once", "x", "y", "z", "parent", "peer"]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_zero_and_one_is_refused(share):
    with pytest.raises(ValueError, match="protected"):
        SlruConfig(protected=share)
