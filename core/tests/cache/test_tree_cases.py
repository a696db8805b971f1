"""Faults that prefix trees are known for, at the level of the cache."""

from array import array

import numpy as np
import pytest

from stepwell.abc.retain import RetentionPolicy
from stepwell.builtin.writers import WriteBack, WriteBackConfig, WriteThrough
from stepwell.cache.audit import nodes
from stepwell.cache.keys import namespace, page_digests
from stepwell.cache.pool import Pool
from stepwell.errors import AuditError
from stepwell.types import Chunked, Full, Tier, Window

NAMESPACE = bytes(32)


def tokens(values):
    return array("i", values).tobytes()


def test_b001_a_running_request_reads_the_trees_page_after_publish(desk):
    d = desk(page=1, device=32)
    prompt = [1, 2, 3, 4, 5, 6]
    a, b = d.admit(prompt), d.admit(prompt)
    theirs, own = a.tables[0][:6].tolist(), b.tables[0][:6].tolist()
    d.cache.publish(a, tokens(prompt))
    b.edits.clear()
    d.cache.step_launched(1)
    d.cache.publish(b, tokens(prompt))
    d.cache.audit()
    assert b.tables[0][:6].tolist() == theirs
    assert [(group, first, ids.tolist()) for group, first, ids in b.edits] == [(0, 0, theirs)]
    c = d.admit(range(50, 56))
    assert not {*c.tables[0][:6].tolist()} & {*own}, "the step in flight still reads them"
    d.cache.step_completed(1)
    e = d.admit(range(60, 76))
    assert {*own} <= {*e.tables[0][:16].tolist()}


def test_b003_counts_hold_over_shared_prefixes_splits_and_evictions(desk):
    d = desk(page=4, device=64)
    for i in range(64):
        shared = [i % 4] * 40
        d.serve([*shared, *range(100 * i, 100 * i + 30)], range(12))
        usage = d.device()
        distinct = {
            page for node in nodes(d.cache._index) for page in np.frombuffer(node.lead, dtype=np.int32).tolist()
        }
        assert usage.tree_only == len(distinct) and usage.held == 0
        assert usage.free + usage.tree_only == 64


def test_b004_a_key_just_under_a_page_matches_nothing(desk):
    d = desk(page=64, device=8)
    d.serve(range(1, 65))
    before = d.cache.version
    assert d.match(range(1, 64)).length == 0
    assert d.cache.version == before
    d.serve(range(1, 129))
    d.evict()
    assert not list(nodes(d.cache._index))
    assert d.device().free == 8


@pytest.mark.parametrize("length", [1, 29, 31, 32, 33, 64])
def test_b005_prompts_around_a_page(desk, length):
    d = desk(page=32, device=8)
    d.serve(range(length), [7])
    assert d.match(range(length)).length == (length - 1) // 32 * 32
    assert d.match([*range(length), 7]).length == length // 32 * 32
    d.cache.flush()
    assert d.device().free == 8


def test_b010_adapter_and_salt_never_share_pages(desk):
    d = desk()
    parts = [{"adapter": "X"}, {"salt": "X"}, {"adapter": "X", "salt": "X"}, {}, {"adapter": ""}, {"extra": "X"}]
    seeds = [namespace(part) for part in parts]
    assert len({page_digests(seed, tokens(range(32)), 16)[:32] for seed in seeds}) == len(parts)
    d.serve(range(32), namespace=seeds[0])
    assert [d.match(range(32), seed).length for seed in seeds] == [28, 0, 0, 0, 0, 0]


def test_b011_blocks_being_computed_are_no_hits(desk):
    d = desk()
    a, b = d.admit(range(12)), d.admit(range(12))
    assert a.cached.total == b.cached.total == 0
    d.cache.publish(a, tokens(range(6)))
    assert d.match(range(12)).length == 4, "half a page is not there"
    d.cache.publish(a, tokens(range(12)))
    assert d.match(range(13)).length == 12


@pytest.mark.parametrize(("page", "cached"), [(4, 4), (1, 7)])
def test_b012_one_token_is_always_left_to_compute(desk, page, cached):
    d = desk(page=page)
    d.serve(range(1, 9))
    for _ in range(3):
        assert d.serve(range(1, 9)).total == cached


def test_b014_what_the_lookup_found_is_not_evicted_for_the_same_request(desk):
    d = desk(device=10, needs=(Full(), Window(4)))
    d.serve(range(16))
    d.serve(range(100, 116))
    lease = d.admit([*range(16), *range(200, 216)])
    assert lease.cached.total == 16
    assert d.match(range(100, 116)).length < 16


def test_b015_published_chunks_outlive_an_abort(desk):
    for page in (4, 1):
        d = desk(page=page, device=32 // page + 4)
        lease = d.admit(range(32), 16)
        d.cache.publish(lease, tokens(range(16)))
        owned = lease.tables[0][: 16 // page].tolist()
        assert d.cache.extend(lease, 24)
        d.cache.close(lease)
        d.cache.audit()
        assert d.device().held == 0 and d.device().tree_only == 16 // page
        again = d.match(range(32))
        assert again.length == 16 and again.device[0].tolist() == owned


def test_b018_b019_the_live_window_reaches_below_the_published_end(desk):
    for page, window in [(8, 3), (4, 6), (8, 8), (1, 1), (3, 7), (5, 1)]:
        d = desk(page=page, device=400, needs=(Full(), Window(window)))
        lease = d.admit([0], 1)
        for length in range(1, 200):
            assert d.cache.extend(lease, length)
            d.cache.publish(lease, tokens(range(length)))
            d.cache.trim(lease, length)
            boundary = length // page * page
            low = max(0, boundary - window) // page
            assert (lease.tables[1][low : boundary // page] >= 0).all()
            held = -(-length // page) - lease.trimmed[1]
            assert held <= -(-max(window, page) // page) + 1, "no more than fits() counts on"
            assert d.match(range(length + 1)).length == boundary
        d.cache.audit()


def test_b023_windows_that_no_end_needs_go_first(desk):
    d = desk(page=1, device=(420, 28), needs=(Full(), Window(4)))
    for branch in range(4):
        d.serve([branch, *range(100, 199)], chunk=2)
    assert d.device(1).free < 8, "pages that no end needs stay while there is room"
    assert d.admit([9, 9, 9, 9, 9, 9, 9, 9]) is not None
    for branch in range(4):
        assert d.match([branch, *range(100, 199)]).length == 99
    assert d.device(0).tree_only == 400, "no full page went for it"


def test_b024_a_match_refreshes_only_its_last_window(desk):
    d = desk(page=1, device=(400, 24), needs=(Full(), Window(4)))
    d.serve(range(1000, 1008), [1])
    told = list(range(8))
    for turn in range(6):
        d.serve(told, [900 + turn], chunk=2)
        told = [*told, 900 + turn, *range(100 * turn, 100 * turn + 8)]
        if turn % 2:
            assert d.match([*range(1000, 1008), 5]).length == 8


def test_b025_tombstones_never_own_a_page(desk):
    d = desk(device=(64, 16), host=32, needs=(Full(), Window(4)))
    for turn in range(60):
        kind, length = turn % 6, 12 + 2 * (turn % 7)
        d.serve([kind // 2, *range(kind, kind + length - 1)])
        d.save()
        d.cache._evictor.evict(0, 1, 1)
        d.cache.audit()


def test_b026_each_pool_is_relieved_by_itself(desk):
    d = desk(page=1, device=(400, 40), needs=(Full(), Window(2)))
    for branch in range(4):
        d.serve([branch, *range(20)], chunk=9)
    full = d.device(0).tree_only
    lease = d.admit(range(500, 520))
    assert lease is not None
    assert d.device(0).tree_only == full


def test_b027_nothing_inside_the_window_is_released(desk):
    for need in (Window(8), Chunked(16)):
        d = desk(page=1, device=64, needs=(need,))
        lease = d.admit(range(20))
        for length in range(20, 33):
            assert d.cache.extend(lease, length)
            d.cache.trim(lease, length)
            assert (lease.tables[0][need.lo(length) : length] >= 0).all()


def test_b030_windows_at_a_branch_are_saved_before_they_go(desk):
    class Branches(RetentionPolicy):
        def keep(self, length, page, branches):
            return [*branches, length // page * page]

    write = WriteBack(WriteBackConfig(1.0))
    d = desk(page=2, device=(24, 12), host=16, needs=(Full(), Window(4)), write=write, retain=Branches())
    d.serve(range(24), chunk=6)
    d.serve([*range(12), *range(50, 58)])
    assert d.save() > 0
    d.evict()
    assert d.match([*range(12), 99]).length == 12
    assert d.cache.stats.dropped_dirty == 0


def test_b032_room_for_loads_is_counted_before_anything_changes(desk):
    d = desk(page=1, device=(60, 20), host=(60, 20), needs=(Full(), Window(8)))
    d.serve(range(13), chunk=4)
    d.save()
    d.evict()
    other = d.admit(range(100, 106))
    before = d.cache.usage()
    assert d.admit([*range(13), *range(200, 210)]) is None
    assert d.cache.usage() == before
    d.cache.close(other)
    assert d.admit([*range(13), *range(200, 209)]) is not None


def test_b128_the_match_is_made_again_at_admission(desk):
    d = desk(device=8)
    d.serve(range(16))
    assert d.match([*range(16), 1]).length == 16
    other = d.admit(range(100, 124))
    d.cache.close(other)
    lease = d.admit([*range(16), 1])
    assert lease.cached.total == 8


def test_freeing_a_free_page_raises():
    pool = Pool(4)
    ids = pool.allocate(2)
    pool.release(ids)
    with pytest.raises(AuditError, match="freed"):
        pool.release(ids)
    with pytest.raises(AuditError):
        pool.acquire(ids)
    with pytest.raises(AuditError):
        pool.uproot(ids)


def test_what_expires_goes_unless_somebody_used_it(desk):
    d = desk(host=64)
    d.serve(range(32), expires=5.0)
    d.serve(range(100, 132), expires=5.0)
    d.save()
    d.serve(range(100, 132))
    d.cache.expire(4.9)
    assert d.match(range(33)).length == 32
    d.cache.expire(5.0)
    d.cache.audit()
    assert d.match(range(33)).length == 0
    assert d.match(range(100, 133)).length == 32


def test_growth_in_chunks_makes_few_nodes(desk):
    d = desk(page=16, device=4200)
    d.serve(range(65536), chunk=512)
    assert len(list(nodes(d.cache._index))) == 16


def test_available_counts_what_a_step_still_reads_as_taken(desk):
    d = desk(device=8, write=WriteThrough())
    lease = d.admit(range(32))
    d.cache.publish(lease, tokens(range(32)))
    d.cache.step_launched(1)
    d.cache.close(lease)
    assert d.cache.available() == (0,) and d.admit(range(100, 104)) is None
    d.cache.step_completed(1)
    assert d.cache.available() == (8,) and d.admit(range(100, 104)) is not None
    d.cache.flush()
    assert d.cache.usage()[Tier.DEVICE][0].tree_only == 0
