"""LFU with aging."""

import pytest

from stepwell_eviction import Lfu, LfuConfig
from stepwell_testkit import EvictionKit


class TestLfu(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Lfu(LfuConfig(), context)


class TestLfuOfOneUse(EvictionKit):
    @pytest.fixture
    def policy(self, context):
        return Lfu(LfuConfig(ceiling=1), context)


@pytest.fixture
def cache(little):
    return little(Lfu(LfuConfig(), None))


def test_least_used_first_then_least_recent(cache):
    cache.all("a", "b", "c", "b", "c", "c", "d")
    assert cache.order == ["a", "d", "b", "c"]


def test_a_scan_does_not_push_out_what_is_used(cache, little, lru):
    def hot_hits(cache):
        cache.all(*"xyxyxy")
        return sum(cache.all(*((turn, i) for i in range(8))) + cache.all("x", "y") for turn in range(10))

    assert hot_hits(little(lru)) == 0
    assert hot_hits(cache) == 20


@pytest.mark.parametrize("ceiling", [4, 16])
def test_old_fame_fades_after_as_many_turnovers_as_count(little, ceiling):
    cache = little(Lfu(LfuConfig(ceiling=ceiling), None))
    cache.all(*["old"] * 200)
    turnovers = 0
    while "old" in cache.held:
        cache.all(*((turnovers, i) for i in range(7)))
        turnovers += 1
        assert turnovers < 100
    assert ceiling - 1 <= turnovers <= ceiling + 3


def test_a_segment_that_gains_a_child_does_not_age_the_others(cache):
    cache.all("plain", *["hot"] * 9)
    hot = cache.held["hot"]
    cache.policy.on_remove(hot)
    cache.use("new")
    assert cache.order == ["plain", "new"]


def test_an_exposed_segment_keeps_its_uses_and_is_the_oldest_of_its_level(cache):
    cache.all("parent", "parent", "peer", "peer", "once")
    parent = cache.held["parent"]
    cache.policy.on_remove(parent)
    cache.policy.on_expose(parent)
    assert cache.order == ["once", "parent", "peer"]
    cache.use("peer")
    cache.policy.on_expose(parent)
    assert cache.order == ["once", "parent", "peer"], "still listed: it stays where it is"


def test_a_ceiling_below_one_is_refused():
    with pytest.raises(ValueError, match="ceiling: 0"):
        LfuConfig(ceiling=0)
