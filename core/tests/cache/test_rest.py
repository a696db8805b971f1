"""A cache that nobody uses comes to rest, and one that is used for long remembers no more than it holds."""

import pytest

from stepwell.builtin.writers import WriteBack, WriteBackConfig, WriteThrough
from stepwell.types import Failed, Full, Window

ROUNDS = 50


def comes_to_rest(d, limit):
    """Saves end, where nothing happens but they."""
    for _ in range(ROUNDS):
        copies = d.cache.saves(limit)
        if not copies:
            return
        for copy in copies:
            d.cache.saved(copy, [True] * len(copy.device))
        d.cache.audit()
    pytest.fail("pages are saved again and again though nothing happens")


@pytest.mark.parametrize("need", [Full(), Window(5)])
@pytest.mark.parametrize("host", [1, 5, 40])
def test_write_back_comes_to_rest_on_a_host_smaller_than_the_reserve(desk, need, host):
    d = desk(page=1, device=60, host=host, needs=(need,), write=WriteBack(WriteBackConfig(0.5)))
    for i in range(12):
        d.serve(range(100 * i, 100 * i + 20))
    comes_to_rest(d, 4)


@pytest.mark.parametrize("limit", [1, 2, 1000])
@pytest.mark.parametrize("write", [WriteThrough(), WriteBack(WriteBackConfig(0.5))])
def test_a_window_that_the_host_cannot_hold_is_not_saved_in_turns(desk, limit, write):
    d = desk(page=1, device=100, host=5, needs=(Window(16),), write=write)
    d.serve(range(20), chunk=6)
    d.serve([*range(20), *range(100, 120)], chunk=7)
    d.serve(range(20))
    comes_to_rest(d, limit)


def test_saves_that_fail_are_not_made_again_until_something_happens(desk):
    d = desk(device=20, host=40, write=WriteBack(WriteBackConfig(0.5)))
    for i in range(4):
        d.serve(range(100 * i, 100 * i + 20))
    for _ in range(ROUNDS):
        copies = d.cache.saves(1000)
        if not copies:
            break
        for copy in copies:
            d.cache.saved(copy, [False] * len(copy.device))
    assert not copies
    d.serve(range(900, 920))
    assert d.cache.saves(1000), "there is news, so it is worth another try"


def test_stores_that_fail_are_not_made_again_until_something_happens(desk):
    d = desk(device=20, host=20, storage={}, write=WriteBack(WriteBackConfig(0.5)))
    for i in range(6):
        d.serve(range(100 * i, 100 * i + 20))
        d.save()
    failed = 0
    for _ in range(ROUNDS):
        ops = d.cache.stores(1000)
        if not ops:
            break
        for op in ops:
            failed += len(op.keys)
            d.cache.stored(op, [Failed("the disk is full")] * len(op.keys))
    assert failed and not ops
    d.serve(range(900, 920))
    d.save()
    assert d.cache.stores(1000), "there is news, so it is worth another try"


def test_pages_that_left_before_their_end_are_forgotten(desk):
    d = desk(page=1, device=8)
    for i in range(4000):
        d.serve([i, i, i], expires=1e9 - i)
    assert len(d.cache._publisher.expiring) < 2000
    d.cache.expire(2e9)
    assert d.device().free == 8
