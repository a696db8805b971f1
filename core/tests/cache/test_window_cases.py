"""Faults that windows are known for, where there are several of them, and where they cross tiers.

With one window and a full group they are in test_tree_cases.py and test_tier_cases.py under the same numbers.
"""

from __future__ import annotations

from array import array

import pytest

from stepwell.abc.retain import RetentionPolicy
from stepwell.builtin.writers import SelectiveConfig, WriteBack, WriteBackConfig, WriteThroughSelective
from stepwell.cache.arena import Arena, slot_bytes
from stepwell.cache.audit import nodes
from stepwell.types import DONE, MISSING, Chunked, Failed, Full, GroupSpec, Tier, Window

NAMESPACE = bytes(32)
RARE = 10**6
THREE = (Full(), Window(6), Chunked(12))


def tokens(values):
    return array("i", values).tobytes()


def stocked(desk, prompt, **settings):
    """An empty cache beside a storage that holds a prompt."""
    storage = {}
    first = desk(**{"host": 64, "storage": storage, **settings})
    first.serve(prompt)
    first.save()
    first.store()
    return desk(**{"host": 64, "storage": storage, **settings})


def reused(d, prompt):
    return d.match([*prompt, RARE]).length


def clean(d):
    d.cache.flush()
    d.cache.audit()
    assert all(usage.free == usage.total for tier in (Tier.DEVICE, Tier.HOST) for usage in d.cache.usage()[tier])


# region: windows on device


@pytest.mark.parametrize("needs", [(Window(3),), (Full(), Window(3), Window(11)), (Full(), Window(6), Chunked(7))])
@pytest.mark.parametrize("page", [1, 4, 8])
def test_b018_b019_every_group_has_its_window_at_every_length(desk, needs, page):
    d = desk(page=page, device=200, needs=needs)
    lease = d.admit([0], 1)
    for length in range(1, 80):
        assert d.cache.extend(lease, length)
        d.cache.publish(lease, tokens(range(length)))
        d.cache.trim(lease, length)
        d.cache.audit()
        boundary = length // page * page
        for table, need in zip(lease.tables, needs, strict=True):
            assert (table[need.lo(boundary) // page : boundary // page] >= 0).all()
        assert reused(d, range(length)) == boundary
    d.cache.close(lease)
    clean(d)


@pytest.mark.parametrize(
    ("page", "window", "lengths"), [(64, 127, [1024]), (8, 8, [16, 24, 32]), (8, 7, [16, 24]), (8, 9, [16, 24])]
)
def test_b020_what_was_just_published_is_found_whole(desk, page, window, lengths):
    for length in lengths:
        d = desk(page=page, device=64, needs=(Full(), Window(window)))
        d.serve(range(length), chunk=page)
        d.cache._evictor.evict(0, 1, d.device(1).tree_only - -(-window // page) - 1)
        assert reused(d, range(length)) == length
        assert d.match(range(length)).length == length - page, "and a page less where one token is left to compute"


def test_b023_an_idle_branch_keeps_every_windows_tail(desk):
    needs = (Full(), Window(4), Window(12), Chunked(10))
    d = desk(page=1, device=(420, 28, 60, 60), needs=needs)
    for branch in range(4):
        d.serve([branch, *range(100, 199)], chunk=2)
    assert d.admit([9] * 8) is not None
    for branch in range(4):
        assert reused(d, [branch, *range(100, 199)]) == 100
    assert d.device(0).tree_only == 400, "no full page went for it"


def test_b023_on_host_windows_that_no_end_needs_are_not_even_there(desk):
    d = desk(page=1, device=500, host=(500, 22), needs=(Full(), Window(4)))
    for branch in range(4):
        d.serve([branch, *range(100, 199)], chunk=10)
        d.save()
    assert d.host(1).tree_only == 4 * 5 and d.cache.stats.skipped_saves == 0
    d.evict()
    for branch in range(4):
        assert reused(d, [branch, *range(100, 199)]) == 100


@pytest.mark.parametrize("host", [(400, 36, 54), (400, 16, 24)], ids=["ample", "smaller than the device"])
def test_b024_a_conversation_that_grows_does_not_push_out_another(desk, host):
    d = desk(page=1, device=(400, 24, 36), host=host, needs=(Full(), Window(4), Window(7)))
    d.serve(range(1000, 1008), [1])
    told = list(range(8))
    for turn in range(6):
        d.serve(told, [900 + turn], chunk=2)
        d.save()
        told = [*told, 900 + turn, *range(100 * turn, 100 * turn + 8)]
        if turn % 2:
            assert d.match([*range(1000, 1008), 5]).length == 8


def test_b025_pages_have_one_owner_in_every_group(desk):
    d = desk(device=(64, 20, 20), host=(32, 12, 12), needs=THREE, storage={})
    for turn in range(100):
        kind, length = turn % 6, 12 + 2 * (turn % 7)
        d.serve([kind // 2, *range(kind, kind + length - 1)])
        d.save()
        d.store()
        for group in (1, 2):
            d.cache._evictor.evict(turn % 2, group, 1)
            d.cache.audit()
    clean(d)


def test_b026_two_windows_are_short_at_once_and_no_full_page_goes(desk):
    d = desk(page=1, device=(400, 40, 44), needs=(Full(), Window(2), Window(5)))
    for branch in range(4):
        d.serve([branch, *range(20)], chunk=9)
    full = d.device(0).tree_only
    lease = d.admit(range(500, 520))
    assert lease is not None and d.device(0).tree_only == full
    d.cache.close(lease)
    before = d.cache.usage()
    assert d.admit(range(600, 642)) is None, "one of the two can never give so many"
    assert d.cache.usage() == before, "and the other gave none"


@pytest.mark.parametrize("need", [Window(8), Window(1), Chunked(16), Chunked(5)])
@pytest.mark.parametrize("page", [1, 4])
def test_b027_pages_within_reach_stay_until_the_step_that_reads_them_is_over(desk, need, page):
    d = desk(page=page, device=(64, 64), needs=(Full(), need))
    lease = d.admit(range(20))
    for length in range(20, 33):
        assert d.cache.extend(lease, length)
        reads = lease.tables[1][need.lo(length - 1) // page : -(-length // page)].tolist()
        assert min(reads) >= 0
        d.cache.step_launched(length)
        d.cache.trim(lease, length)
        fresh = d.admit([RARE + length] * page)
        assert not {*reads} & {*fresh.tables[1][:1].tolist()}, "the step in flight still reads it"
        d.cache.close(fresh)
        d.cache.step_completed(length)
        d.cache.audit()


def test_b029_a_chunk_that_finds_no_room_leaves_everything_as_it_was(desk):
    d = desk(page=1, device=(240, 24), needs=(Full(), Window(8)))
    other = d.admit([RARE] * 8)
    lease = d.admit(range(60), 16)
    d.cache.publish(lease, tokens(range(16)))
    d.cache.trim(lease, 16)
    before = d.cache.usage(), lease.pages, lease.capacity, lease.published, [table.tolist() for table in lease.tables]
    assert not d.cache.extend(lease, 32)
    after = d.cache.usage(), lease.pages, lease.capacity, lease.published, [table.tolist() for table in lease.tables]
    assert after == before
    d.cache.close(other)
    assert d.cache.extend(lease, 32)
    d.cache.publish(lease, tokens(range(32)), final=True)
    d.cache.close(lease)
    assert reused(d, range(32)) == 32


# endregion

# region: windows between device and host


class Branches(RetentionPolicy):
    def keep(self, length, page, branches):
        return [*branches, length // page * page]


def test_b030_a_window_on_its_way_to_host_is_not_evicted(desk):
    needs = (Full(), Window(4), Window(6))
    write = WriteBack(WriteBackConfig(1.0))
    d = desk(page=2, device=(28, 14, 16), host=24, needs=needs, write=write, retain=Branches())
    d.serve(range(24), chunk=6)
    d.serve([*range(12), *range(50, 58)])
    copies = d.cache.saves(100)
    assert {copy.group for copy in copies} == {0, 1, 2}
    for _ in range(3):
        d.evict()
        d.evict(Tier.HOST)
        for copy in copies:
            assert (d.cache._pools[0][copy.group].refs[copy.device] >= 1).all()
            assert (d.cache._pools[1][copy.group].refs[copy.host] == 1).all()
        other = d.admit([RARE, RARE])
        for copy in copies:
            assert not {*other.tables[copy.group][:1].tolist()} & {*copy.device.tolist()}
        d.cache.close(other)
    for copy in copies:
        d.cache.saved(copy, [True] * len(copy.device))
    d.cache.audit()
    clean(d)


def test_b030_every_window_at_a_branch_is_on_host_before_it_goes(desk):
    write = WriteBack(WriteBackConfig(1.0))
    needs = (Full(), Window(4), Window(6))
    d = desk(page=2, device=(28, 14, 16), host=20, needs=needs, write=write, retain=Branches())
    d.serve(range(24), chunk=6)
    d.serve([*range(12), *range(50, 58)])
    assert d.save() > 0
    d.evict()
    assert reused(d, range(12)) == 12 and d.match([*range(12), RARE]).device_length == 0
    assert d.cache.stats.dropped_dirty == 0


def test_b032_loads_of_every_window_are_counted_before_anything_changes(desk):
    d = desk(page=1, device=(60, 20, 30), host=60, needs=(Full(), Window(8), Window(12)))
    d.serve(range(13), chunk=4)
    d.save()
    d.evict()
    prompt = [*range(13), *range(200, 210)]
    other = d.admit(range(100, 106))
    before = d.cache.usage()
    assert d.admit(prompt) is None, "the nearer window lacks 8 loaded and 10 new pages"
    assert d.cache.usage() == before
    assert d.admit(prompt, 14) is not None
    d.cache.close(other)
    for reserve, fits in ((0, True), ((0, 3, 0), False), ((0, 0, 9), False)):
        d = desk(page=1, device=(60, 20, 30), host=60, needs=(Full(), Window(8), Window(12)))
        d.serve(range(13), chunk=4)
        d.save()
        d.evict()
        lease = d.cache.admit(NAMESPACE, tokens(prompt), lambda length: len(prompt), reserve=reserve)
        assert (lease is not None) == fits


def test_b035_a_window_that_finds_no_host_room_is_dropped_cleanly(desk):
    d = desk(device=(16, 16), host=(16, 1), needs=(Full(), Window(8)))
    d.serve(range(16))
    d.save()
    lease = d.admit([*range(16), RARE])
    d.serve(range(100, 116))
    d.save()
    assert d.cache.stats.skipped_saves > 0
    d.cache.close(lease)
    d.evict()
    d.cache.audit()
    assert d.host(0).tree_only == 8 and d.host(1).tree_only <= 1
    assert reused(d, range(16)) == 0, "half a window is none"
    clean(d)


def test_b037_a_fetch_fills_windows_beside_what_was_computed_meanwhile(desk):
    write = WriteThroughSelective(SelectiveConfig(9))
    d = desk(host=64, needs=THREE, storage=stocked(desk, range(24), needs=THREE).storage, write=write)
    op = d.fetch(range(25))
    d.serve(range(8))
    assert d.fetched(op) == 24
    for node in nodes(d.cache._index):
        assert node.parent.parent is None or node.parent.runs[0].host
    d.evict()
    match = d.match(range(25))
    assert (match.length, match.device_length) == (24, 0)


@pytest.mark.parametrize("needs", [(Full(), Window(5)), THREE, (Window(9),)])
def test_b038_windows_of_prompts_in_chunks_come_back_from_host(desk, needs):
    for prompt, chunk, back in [(range(24), 8, 20), (range(6), 8, 4)]:
        d = desk(host=64, needs=needs)
        d.serve(prompt, chunk=chunk)
        assert [node.hits for node in nodes(d.cache._index)] == [0]
        d.save()
        d.evict()
        assert d.match(prompt).device_length == 0
        assert d.serve(prompt).total == back and d.to_device > 0


def test_b042_a_window_computed_meanwhile_wins_over_what_was_fetched(desk):
    d = stocked(desk, range(16), needs=THREE)
    op = d.fetch(range(17))
    d.serve(range(16))
    device = [ids.tolist() for ids in d.match(range(17)).device]
    d.fetched(op)
    lease = d.admit(range(17))
    assert lease.loads == []
    for group, ids in enumerate(device):
        assert lease.tables[group][4 - len(ids) : 4].tolist() == ids
    d.cache.close(lease)
    clean(d)


def test_b045_a_window_under_a_copy_is_never_allocated(desk):
    d = desk(device=(16, 6), host=16, needs=(Full(), Window(8)))
    d.serve(range(24))
    copies = {copy.group: copy for copy in d.cache.saves(100)}
    d.evict()
    fresh = d.admit(range(100, 112))
    assert fresh is not None
    for group, copy in copies.items():
        assert not {*copy.device.tolist()} & {*fresh.tables[group][:3].tolist()}
    assert not d.cache.extend(fresh, 16), "three of six pages are copied, three are taken"
    for copy in copies.values():
        d.cache.saved(copy, [True] * len(copy.device))
    assert d.cache.extend(fresh, 16)
    d.cache.close(fresh)
    d.cache.audit()


def test_b046_windows_that_the_lookup_promised_are_not_evicted(desk):
    d = desk(device=64, host=(8, 4, 4), needs=(Full(), Window(8), Chunked(10)))
    d.serve(range(24))
    d.serve(range(100, 108))
    d.save()
    d.evict()
    lease = d.admit(range(25))
    assert lease.cached.total == 24 and {copy.group for copy in lease.loads} == {0, 1, 2}
    d.serve(range(200, 232))
    d.save()
    for copy in lease.loads:
        assert (d.cache._pools[1][copy.group].refs[copy.host] >= 1).all()
    d.cache.close(lease)
    for copy in lease.loads:
        d.cache.loaded(lease, copy, [True] * len(copy.device))
    d.cache.audit()
    assert all(usage.held == 0 for usage in d.cache.usage()[Tier.HOST])


@pytest.mark.parametrize("group", [0, 1, 2])
def test_b048_refused_pages_of_one_group_make_the_length_unusable(desk, group):
    d = desk(host=64, needs=THREE)
    d.serve(range(28))
    d.save()
    d.evict()
    lease, other = d.admit(range(29)), d.admit(range(29))
    for copy in lease.loads:
        came = copy.group != group
        assert d.cache.loaded(lease, copy, [True] * (len(copy.device) - 1) + [came]) == came
    d.cache.audit()
    assert lease.broken
    d.cache.publish(lease, tokens(range(29)), final=True)
    good = d.match([*range(28), RARE]).length
    assert good < 28, "what was computed on bad pages is not published"
    d.cache.close(lease)
    again = d.cache.admit(NAMESPACE, tokens(range(29)), lambda length: 29, load=False)
    assert again.cached.total <= good and again.loads == []
    d.load(other)
    d.cache.close(other)
    d.cache.close(again)
    clean(d)


def test_b055_pages_of_all_groups_are_counted(desk):
    d = desk(host=64, needs=(Full(), Window(6)), storage={})
    d.serve(range(24))
    saved = d.save()
    d.store()
    d.evict()
    d.serve(range(25))
    stats = d.cache.stats
    assert saved == 6 + 3, "the window at 24 and at 20"
    assert (stats.saved, stats.stored, stats.loaded) == (d.to_host, len(d.storage), d.to_device) == (9, 9, 6 + 2)


# endregion

# region: windows in storage


def test_b066_an_aborted_fetch_gives_back_the_pages_of_all_groups(desk):
    storage = stocked(desk, range(32), needs=THREE).storage
    d = desk(host=16, storage=storage, needs=THREE)
    for turn in range(10):
        op = d.fetch(range(33))
        d.cache.fetched(op, [[DONE] * (turn % (len(keys) + 1)) for _, keys, _ in op.reads[: turn % 4]])
        d.cache.flush()
        d.cache.audit()
        assert [d.host(group).free for group in range(3)] == [16, 16, 16]


def test_b068_no_group_takes_back_pages_that_a_slow_read_may_write(desk):
    storage = stocked(desk, range(32), needs=THREE).storage
    d = desk(host=10, storage=storage, needs=THREE)
    op = d.fetch(range(33))
    reading = {group: set() for group in range(3)}
    for group, _, ids in op.reads:
        reading[group] |= {*ids.tolist()}
    assert [d.host(group).held for group in range(3)] == [len(reading[group]) for group in range(3)]
    d.cache.flush()
    for group in range(3):
        pool = d.cache._pools[1][group]
        others = pool.allocate(pool.free)
        assert not reading[group] & {*others.tolist()}
        pool.release(others)
    d.cache.fetched(op, [])
    d.cache.audit()
    assert [d.host(group).free for group in range(3)] == [10, 10, 10]


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_b069_usable_is_the_longest_length_whose_windows_came(desk, lost):
    needs = (Full(), Window(6))
    d = stocked(desk, range(16), needs=needs)
    op = d.fetch(range(17))
    came = {0: set(), 1: set()}
    results = []
    for group, keys, _ in op.reads:
        pages = [op.plan.pages[group][op.plan.keys[group].index(key)] for key in keys]
        good = {page for page in pages if group == 0 or page != lost}
        came[group] |= good
        results.append([DONE if page in good else Failed("torn") for page in pages])
    best = max(
        pages
        for pages in range(5)
        if {*range(pages)} <= came[0] and {*range(max(0, pages * 4 - 6) // 4, pages)} <= came[1]
    )
    assert d.cache.fetched(op, results) == best * 4 == (16, 16, 0, 12)[lost]
    d.cache.audit()
    assert d.host(0).tree_only == best and d.host(0).held == d.host(1).held == 0


@pytest.mark.parametrize(("lost", "usable", "stored"), [(0, 24, 4), (1, 20, 3), (3, 0, 0)])
def test_b070_splits_under_the_save_of_a_window_lose_nothing(desk, lost, usable, stored):
    d = desk(host=64, storage={}, needs=(Full(), Window(12)))
    d.serve(range(24))
    copies = {copy.group: copy for copy in d.cache.saves(100)}
    assert len(copies[1].device) == 4, "the windows at 24 and at 20"
    d.serve([*range(16), 99, 99, 99, 99])
    d.serve([*range(20), 98, 98, 98, 98])
    d.cache.saved(copies[0], [True] * 6)
    d.cache.saved(copies[1], [True] * (4 - lost) + [False] * lost)
    d.cache.audit()
    d.evict()
    assert reused(d, range(24)) == usable
    assert d.host(0).held == d.host(1).held == 0
    d.store()
    assert len(d.storage) == 6 + stored, "a page that no whole window has is not worth storing"


def test_b075_every_group_has_slots_of_its_own_size(desk):
    groups = (GroupSpec("full", Full(), 64, (0,)), GroupSpec("near", Window(7), 32, (1,)))
    arena = Arena.create(groups, 4, (5, 3))
    try:
        (first, stride, payload), (after, other, small) = arena.slots(0), arena.slots(1)
        assert (payload, small) == (256, 128)
        assert stride >= slot_bytes(256) and other >= slot_bytes(128)
        assert first + 5 * stride <= after and after + 3 * other <= arena.nbytes
    finally:
        arena.close()


def test_b083_a_window_page_that_was_not_stored_is_a_miss(desk):
    storage = {}
    made = {"host": 64, "storage": storage, "needs": (Full(), Window(6))}
    d = desk(**made)
    d.serve(range(24))
    d.save()
    for op in d.cache.stores(1000):
        results = [MISSING if op.group == 1 and i == len(op.keys) - 1 else DONE for i in range(len(op.keys))]
        storage.update({key: 1 for key, result in zip(op.keys, results, strict=True) if result is DONE})
        d.cache.stored(op, [Failed("disk full") if result is MISSING else result for result in results])
    assert d.cache.stats.store_failed == 1
    fresh = desk(**made)
    op = fresh.fetch(range(25))
    assert fresh.fetched(op) == 20, "the window at 20 is there, that at 24 lacks its last page"


def test_b055_of_windows_alone_what_came_from_host_is_said_to_have(desk):
    d = desk(page=4, needs=(Window(8),), host=64)
    d.serve(range(40))
    d.save()
    d.evict()
    cached = d.serve(range(41))
    assert (cached.device, cached.host) == (0, 40)


@pytest.mark.parametrize("came", [0, 1])
def test_of_chunks_alone_a_fetch_leaves_no_node_without_pages(desk, came):
    """A chunk's end needs no page: it is usable, and nothing of it is there, when storage gave nothing."""
    settings = {"page": 4, "needs": (Chunked(8),), "host": 64, "storage": {}}
    first = desk(**settings)
    first.serve(range(20))
    first.save()
    first.store()
    d = desk(**{**settings, "storage": first.storage})
    op = d.fetch([*range(20), 5])
    assert op is not None and len(op.reads) == 1
    d.fetched(op, [came])
    assert bool(list(nodes(d.cache._index))) == bool(came)
    assert d.host().held == 0


def test_of_chunks_alone_room_may_be_made_of_what_was_found(desk):
    """A chunk's end needs no page, so nothing holds the node that a prompt goes on behind."""
    d = desk(page=4, device=4, needs=(Chunked(8),))
    other = d.admit(range(100, 107))
    d.cache.publish(other, tokens(range(100, 107)))
    d.serve(range(8))
    lease = d.admit([*range(8), 50, 51, 52, 53, 54])
    assert lease is not None and lease.cached.total == 8
    d.cache.publish(lease, tokens([*range(8), 50, 51, 52, 53, 54]), final=True)
    d.cache.close(lease)
    d.cache.close(other)
    d.cache.audit()
    assert d.device().held == 0


class Everywhere(RetentionPolicy):
    """All lengths."""

    def keep(self, length, page, branches):
        return range(page, length + 1, page)

    def along(self, start, end, page, branches):
        return range(start + page, end + 1, page)


@pytest.mark.parametrize("end", [20, 24, 28, 48])
def test_of_chunks_alone_no_length_is_kept_behind_the_last_page(desk, end):
    """An answer that ends where a chunk does needs no page of it: what has none is not in the tree."""
    d = desk(page=4, needs=(Chunked(24),), host=64, retain=Everywhere())
    prompt = list(range(8))
    d.serve(prompt, range(8, end + 1))
    assert d.save() > 0
    assert d.match([*range(end), 5]).length == (end if end % 24 else 8)


# endregion
