"""Faults that host and storage tiers are known for, at the level of the cache."""

from array import array
from random import Random

import pytest

from stepwell.abc.sink import PagesStored
from stepwell.builtin.writers import SelectiveConfig, WriteBack, WriteBackConfig, WriteThroughSelective
from stepwell.cache.audit import nodes
from stepwell.types import DONE, MISSING, Failed, Full, Tier, Window

NAMESPACE = bytes(32)


def tokens(values):
    return array("i", values).tobytes()


def stocked(desk, prompt, **settings):
    """An empty cache beside a storage that holds a prompt."""
    storage = {}
    first = desk(host=64, storage=storage, **settings)
    first.serve(prompt)
    first.save()
    first.store()
    return desk(**{"host": 64, "storage": storage, **settings})


@pytest.mark.parametrize("delivered", [0, 2, 6])
def test_b033_the_rest_of_a_fetch_is_released_once(desk, delivered):
    d = stocked(desk, range(24), device=64)
    d = desk(host=8, storage=d.storage)
    op = d.fetch(range(25))
    assert op.pages == 6
    d.fetched(op, [delivered])
    assert d.host().free == 8 - delivered
    pool = d.cache._pools[1][0]
    d.evict(Tier.HOST)
    taken = [*pool.allocate(4).tolist(), *pool.allocate(4).tolist()]
    assert sorted(taken) == list(range(8))


def test_b034_a_node_keeps_no_larger_memory_alive(desk):
    d = desk(page=16, device=256, host=256)
    for i in range(40):
        d.serve(range(i * 1000, i * 1000 + 256 + i % 7))
        d.save()
        d.serve([*range(i * 1000, i * 1000 + 64), 7])
    for node in nodes(d.cache._index):
        run = node.runs[0]
        for ids in (run.device, run.host, node.lead):
            assert type(ids) is bytes and len(ids) <= 4 * node.pages


def test_b035_no_host_room_does_not_stop_eviction(desk):
    d = desk(device=7, host=2)
    d.serve(range(8))
    d.save()
    d.evict()
    assert d.admit(range(9)).loads
    d.serve(range(100, 116))
    assert d.cache.saves(100) == [] and d.cache.stats.skipped_saves == 4
    assert d.cache._evictor.evict(0, 0, 2) == 2
    for node in nodes(d.cache._index):
        assert node.runs[0].device or node.runs[0].host


def test_b037_a_fetch_fills_the_host_copy_of_what_was_computed_meanwhile(desk):
    storage = stocked(desk, range(12)).storage
    d = desk(host=64, storage=storage, write=WriteThroughSelective(SelectiveConfig(2)))
    op = d.fetch(range(13))
    d.serve(range(4))
    assert d.fetched(op) == 12
    for node in nodes(d.cache._index):
        assert node.parent.parent is None or node.parent.runs[0].host
    d.evict()
    found = d.match(range(13))
    assert (found.length, found.device_length) == (12, 0)


def test_b038_prompts_longer_than_a_chunk_come_back_from_host(desk):
    for prompt, chunk, back in [(range(24), 8, 20), (range(6), 8, 4)]:
        d = desk(host=64)
        d.serve(prompt, chunk=chunk)
        assert [node.hits for node in nodes(d.cache._index)] == [0]
        d.save()
        d.evict()
        assert d.match(prompt).device_length == 0
        assert d.serve(prompt).host == back


def test_b039_one_request_counts_once(desk):
    d = desk(host=64, write=WriteThroughSelective(SelectiveConfig(2)))
    d.serve(range(16), range(50, 54), chunk=8)
    assert d.save() == 0
    d.serve(range(16), range(50, 54), chunk=8)
    assert d.save() == 4


def test_b042_what_was_computed_meanwhile_wins_over_what_was_fetched(desk):
    d = stocked(desk, range(16))
    op = d.fetch(range(17))
    d.serve(range(16))
    device = d.match(range(17)).device[0].tolist()
    d.fetched(op)
    lease = d.admit(range(17))
    assert lease.loads == [] and lease.tables[0][:4].tolist() == device
    other = d.admit(range(100, 116))
    assert not {*device} & {*other.tables[0][:4].tolist()}


def test_b042_a_load_that_lost_the_race_is_dropped(desk):
    d = desk(host=64)
    d.serve(range(17))
    d.save()
    d.evict()
    slow, fast = d.admit(range(17)), d.admit(range(17))
    assert slow.loads and fast.loads
    d.load(fast)
    own = slow.tables[0][:4].tolist()
    slow.edits.clear()
    d.load(slow)
    assert slow.tables[0][:4].tolist() == fast.tables[0][:4].tolist() != own
    assert len(slow.edits) == 1 and d.device().held == 6


def test_b043_nothing_is_saved_before_it_is_published(desk):
    d = desk(host=64)
    lease = d.admit(range(16))
    assert d.cache.saves(100) == []
    d.cache.publish(lease, tokens(range(8)))
    assert [len(copy.device) for copy in d.cache.saves(100)] == [2]


def test_b045_a_page_under_a_copy_is_never_allocated(desk):
    d = desk(device=8, host=16)
    d.serve(range(32))
    (copy,) = d.cache.saves(100)
    assert d.cache.available() == (0,)
    assert d.admit(range(100, 104)) is None
    d.cache.saved(copy, [True] * 8)
    assert d.admit(range(100, 104)) is not None


def test_b046_what_the_lookup_promised_is_not_evicted(desk):
    d = desk(device=64, host=8)
    d.serve(range(24))
    d.serve(range(100, 108))
    d.save()
    d.evict()
    lease = d.admit(range(25))
    assert lease.cached.host == 24
    d.serve(range(200, 232))
    d.save()
    for copy in lease.loads:
        assert (d.cache._pools[1][0].refs[copy.host] >= 1).all()
    d.cache.close(lease)
    for copy in lease.loads:
        d.cache.loaded(lease, copy, [True] * len(copy.device))
    d.cache.audit()
    assert d.host().held == 0


@pytest.mark.parametrize("bad", [range(4), [3]])
def test_b048_refused_pages_leave_the_tree(desk, bad):
    d = desk(host=64)
    d.serve(range(24))
    d.save()
    d.evict()
    lease, other = d.admit(range(17)), d.admit(range(17))
    (copy,) = lease.loads
    assert not d.cache.loaded(lease, copy, [i not in bad for i in range(4)])
    d.cache.audit()
    good = min(bad) * 4
    assert d.match(range(25)).length == good
    d.cache.publish(lease, tokens(range(17)), final=True)
    assert d.match(range(25)).length == good, "what was computed on bad pages is not published"
    d.cache.close(lease)
    again = d.cache.admit(NAMESPACE, tokens(range(17)), lambda length: 17, load=False)
    assert again.cached.total == good and again.loads == []
    d.load(other)
    d.cache.close(other)
    d.cache.close(again)
    d.cache.audit()


def test_b050_b051_lookups_pin_nothing_and_every_order_frees_once(desk):
    d = desk(device=40, host=10)
    d.serve(range(32))
    d.save()
    for _ in range(3):
        assert d.match(range(33)).length == 32
        assert d.serve(range(33)).device == 32
    d.evict()
    first, second = d.admit(range(33)), d.admit(range(33))
    d.cache.close(first)
    d.load(second)
    for copy in first.loads:
        d.cache.loaded(first, copy, [True] * len(copy.device))
    d.cache.close(second)
    d.cache.audit()
    assert d.host().held == d.device().held == 0
    d.serve(range(100, 140))
    d.save()
    assert d.host().tree_only == 10 and d.cache.stats.skipped_saves == 0


def test_b055_every_page_moved_is_counted(desk):
    d = desk(host=64, storage={})
    d.serve(range(16))
    d.save()
    d.store()
    d.evict()
    d.serve(range(17))
    stats = d.cache.stats
    assert (stats.saved, stats.stored, stats.loaded) == (d.to_host, len(d.storage), d.to_device) == (4, 4, 4)


def test_b066_an_aborted_fetch_gives_all_pages_back(desk):
    draw = Random(66)
    storage = stocked(desk, range(32)).storage
    d = desk(host=16, storage=storage)
    for _ in range(10):
        op = d.fetch(range(33))
        d.fetched(op, [draw.randrange(9)])
        d.cache.flush()
        assert d.host().free == 16


def test_b068_pages_of_a_slow_read_stay_taken_until_it_returns(desk):
    needs = (Full(), Window(8))
    storage = stocked(desk, range(32), needs=needs).storage
    d = desk(host=10, storage=storage, needs=needs)
    op = d.fetch(range(33))
    assert [d.host(g).held for g in (0, 1)] == [8, 3], "a window, and the page below it"
    d.cache.flush()
    pool = d.cache._pools[1][0]
    reading = {page for group, _, ids in op.reads if group == 0 for page in ids.tolist()}
    others = pool.allocate(2)
    assert pool.free == 0 and not reading & {*others.tolist()}
    pool.release(others)
    d.fetched(op, [0] * len(op.reads))
    assert [d.host(g).free for g in (0, 1)] == [10, 10]


@pytest.mark.parametrize(("came", "usable"), [("1111", 4), ("1101", 2), ("1011", 1), ("0111", 0), ("0000", 0)])
def test_b069_usable_is_the_run_from_the_start(desk, came, usable):
    d = stocked(desk, range(16))
    op = d.fetch(range(17))
    assert d.cache.fetched(op, [[DONE if each == "1" else Failed("torn") for each in came]]) == 4 * usable
    d.cache.audit()
    assert d.host().tree_only == usable and d.host().held == 0


def test_b069_of_two_pools_the_shorter_run_counts(desk):
    d = stocked(desk, range(16), needs=(Full(), Full()))
    op = d.fetch(range(17))
    answers = {0: "1110", 1: "1011"}
    results = [[DONE if each == "1" else MISSING for each in answers[group]] for group, _, _ in op.reads]
    assert d.cache.fetched(op, results) == 4
    d.cache.audit()
    assert [d.host(g).tree_only for g in (0, 1)] == [1, 1]


@pytest.mark.parametrize("acknowledged", [6, 3])
def test_b070_splits_under_a_save_lose_nothing(desk, acknowledged):
    d = desk(host=64, storage={})
    d.serve(range(24))
    (copy,) = d.cache.saves(100)
    d.serve([*range(8), 99, 99, 99, 99])
    d.serve([*range(16), 98, 98, 98, 98])
    d.cache.saved(copy, [True] * acknowledged + [False] * (6 - acknowledged))
    d.cache.audit()
    d.evict()
    assert d.match(range(25)).length == 4 * acknowledged
    assert d.host().held == 0
    d.store()
    assert len(d.storage) == acknowledged


def test_b073_a_fetch_over_the_limit_takes_part(desk):
    d = stocked(desk, range(32))
    assert d.fetch(range(33), limit=0) is None
    op = d.fetch(range(33), limit=5)
    assert op.pages == 5
    assert d.fetched(op) == 20


def test_b076_a_fresh_cache_asks_for_everything(desk):
    d = stocked(desk, range(32))
    plan = d.cache.plan_fetch(NAMESPACE, tokens(range(33)))
    assert plan.pages == (tuple(range(8)),)
    op = d.cache.start_fetch(plan, [[key in d.storage for key in plan.keys[0]]], 100)
    assert d.fetched(op) == 32
    assert d.serve(range(33)).host == 32


def test_windows_alone_travel(desk):
    needs = (Full(), Window(8))
    d = desk(host=64, storage={}, needs=needs)
    d.serve(range(40), chunk=8)
    assert d.save() == 10 + 3
    d.store()
    d.evict()
    d.evict(Tier.HOST)
    op = d.fetch(range(41))
    assert [(group, len(keys)) for group, keys, _ in op.reads] == [(0, 10), (1, 2), (1, 1)]
    assert d.fetched(op) == 40


def test_write_back_keeps_a_clean_reserve(desk):
    d = desk(device=20, host=40, write=WriteBack(WriteBackConfig(0.25)))
    for i in range(6):
        d.serve(range(100 * i, 100 * i + 20))
        d.save()
    assert d.cache.stats.dropped_dirty == 0
    assert d.match(range(21)).length == 20, "the oldest came down before it had to leave"


def test_write_back_without_a_reserve_drops_clean_pages_first(desk):
    d = desk(device=20, host=40, write=WriteBack(WriteBackConfig(0.5)))
    d.serve(range(20))
    d.serve(range(100, 120))
    d.serve(range(200, 220))
    assert d.save() == 5
    d.match(range(21))
    lease = d.admit(range(300, 340))
    assert lease is not None
    assert d.match(range(21)).device_length == 0, "clean, so it went although it was used last"
    assert d.match(range(101, 102)).length == 0
    assert d.cache.stats.dropped_dirty == 0 and d.match(range(100, 121)).device_length == 20


def test_a_device_page_leaves_with_what_lies_behind_it(desk):
    storage = stocked(desk, range(32)).storage
    d = desk(host=64, storage=storage, write=WriteThroughSelective(SelectiveConfig(9)))
    d.serve(range(8))
    op = d.fetch(range(33))
    assert d.fetched(op) == 32
    d.evict()
    assert d.match(range(33)).length == 0 and d.host().free == 64


def test_events_tell_what_is_where(desk):
    d = desk(host=64, storage={})
    d.cache._index.watch = d.cache._watch.record
    d.serve(range(32), chunk=8)
    d.serve([*range(16), *range(70, 86)], chunk=8)
    d.save()
    d.store()
    d.evict()
    d.evict(Tier.HOST)
    here = {tier: set() for tier in Tier}
    seen = 0
    for event in d.cache.drain_events():
        if isinstance(event, PagesStored):
            seen += len(event.keys)
            assert event.parent is None or event.parent in here[event.tier]
            here[event.tier] |= {*event.keys}
        else:
            here[event.tier] -= {*event.keys}
    assert seen == 3 * 12
    assert here == {Tier.DEVICE: set(), Tier.HOST: set(), Tier.STORAGE: {*d.storage}}
