"""What goes wrong in a storage is a page that is not there: no exception, no wrong byte, no long wait."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from stepwell import MISSING, Failed
from stepwell_sglang import trial

from .conftest import Shaky, content, fill, hashes

QUICK = {"tiers": {"timeout_s": 0.3, "stuck_calls": 2, "breaker_failures": 3, "breaker_s": 0.3, "retries": 1}}


def tag(store: Any, part: str) -> bytes:
    return store._library.shelf("kv")._names.tag(part)


def test_b069_only_the_leading_run_is_a_hit_and_every_page_has_its_own_result(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool)
    fill(pool, 1)
    slots = pool.alloc(4 * 16)
    assert store.batch_set_v1(hashes(4), slots) == [True] * 4
    keys = store._library.shelf("kv")._names.digests(hashes(4))
    for pattern, run in (("1111", 4), ("1101", 2), ("1011", 1), ("0111", 0), ("0000", 0)):
        shaky.fail = lambda what, key, gone=pattern: MISSING if gone[keys.index(key[:32])] == "0" else None
        good = store.batch_get_v1(hashes(4), slots)
        assert good == [one == "1" for one in pattern]
        assert trial.Driver(store, pool).prefetch(hashes(4), slots) == run


@pytest.mark.parametrize("part", ["0", "1", "seal"])
def test_b074_a_page_of_which_a_part_failed_has_failed(attach: Any, shaky: Shaky, part: str) -> None:
    pool = trial.mha()
    store = attach(pool)
    fill(pool, 1)
    slots, target = pool.alloc(4 * 16), pool.alloc(4 * 16)
    before = content(pool, slots)
    third = store._library.shelf("kv")._names.digests(hashes(4))[2] + tag(store, part)
    shaky.fail = lambda what, key: Failed("full") if (what, key) == ("write", third) else None
    assert store.batch_set_v1(hashes(4), slots) == [True, True, False, True]
    assert store.batch_exists(hashes(4)) == 2
    assert store.batch_get_v1(hashes(4), target) == [True, True, False, True]
    shaky.fail = lambda what, key: None
    assert store.batch_set_v1(hashes(4), slots) == [True] * 4
    assert store.batch_get_v1(hashes(4), target) == [True] * 4
    assert content(pool, target) == before


@pytest.mark.parametrize("how", ["flipped", "cut", "swapped", "another's"])
@pytest.mark.parametrize("part", ["0", "1", "seal"])
def test_a_page_that_was_damaged_is_missing_and_can_be_stored_anew(
    attach: Any, shaky: Shaky, how: str, part: str
) -> None:
    pool = trial.mha()
    store = attach(pool)
    fill(pool, 1)
    slots, target = pool.alloc(3 * 16), pool.alloc(3 * 16)
    before = content(pool, slots)
    store.batch_set_v1(hashes(3), slots)
    digests = store._library.shelf("kv")._names.digests(hashes(3))
    key, other = digests[1] + tag(store, part), digests[2] + tag(store, part)
    page = shaky.pages[key]
    shaky.pages[key] = {
        "flipped": page[:9] + bytes([page[9] ^ 1]) + page[10:],
        "cut": page[:-1],
        "swapped": shaky.pages[other],
        "another's": bytes(len(page)),
    }[how]
    assert store.batch_get_v1(hashes(3), target) == [True, False, True]
    if how != "cut":  # which the storage itself finds
        assert store.values()["failed_checksum"] == 1
        assert store.batch_set_v1(hashes(3), slots) == [True] * 3
        assert store.batch_get_v1(hashes(3), target) == [True] * 3
        assert content(pool, target) == before


def test_a_part_that_the_store_dropped_is_written_again(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool)
    fill(pool, 1)
    slots = pool.alloc(2 * 16)
    store.batch_set_v1(hashes(2), slots)
    del shaky.pages[store._library.shelf("kv")._names.digests(hashes(2))[0] + tag(store, "1")]
    fill(pool, 2)  # as computed by another batch: near the same, not the same
    assert store.batch_set_v1(hashes(2), slots) == [True, True]
    assert store.batch_get_v1(hashes(2)[:1], slots[:16]) == [True]


def test_exceptions_stay_inside_and_calls_pause_until_the_store_is_back(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool, more=QUICK)
    slots = pool.alloc(2 * 16)
    store.batch_set_v1(hashes(2), slots)

    def broken(what: str) -> None:
        raise OSError("connection refused")

    shaky.before = broken
    for _ in range(8):
        assert store.batch_exists(hashes(2)) == 0
        assert store.batch_get_v1(hashes(2), slots) == [False, False]
        assert store.batch_set_v1(hashes(2), slots) == [False, False]
        assert not store.exists("x")
        assert store.batch_get(["x"]) == [None]
    assert store.values()["read_paused"] == 1
    shaky.before = lambda what: None
    end = time.monotonic() + 5
    while store.batch_exists(hashes(2)) != 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert store.batch_get_v1(hashes(2), slots) == [True, True]


def test_a_store_that_hangs_costs_misses_and_not_minutes(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool, more=QUICK)
    slots = pool.alloc(2 * 16)
    store.batch_set_v1(hashes(2), slots)
    free = threading.Event()
    shaky.before = lambda what: free.wait(30)
    start = time.monotonic()
    try:
        for _ in range(20):
            assert store.batch_exists(hashes(2)) == 0
            assert store.batch_set_v1(hashes(2), slots) == [False, False]
        assert time.monotonic() - start < 4
    finally:
        free.set()
    end = time.monotonic() + 5
    while store.batch_exists(hashes(2)) != 2:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_b068_a_late_read_keeps_its_pages_until_it_returns(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool, more=QUICK)
    fill(pool, 1)
    slots, target = pool.alloc(2 * 16), pool.alloc(2 * 16)
    store.batch_set_v1(hashes(2), slots)
    free, returned = threading.Event(), threading.Event()
    shaky.before = lambda what: what == "contains" or free.wait(30)

    def read() -> None:
        store.batch_get_v1(hashes(2), target)
        returned.set()

    threading.Thread(target=read, daemon=True).start()
    assert not returned.wait(1.0), "the storage may still write there"
    free.set()
    assert returned.wait(5)


def test_a_page_that_changed_under_a_late_write_never_appears(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool, more=QUICK)
    slots = pool.alloc(16)
    for seed, stage in enumerate(("contains", "write")):
        fill(pool, 2 * seed)
        free = threading.Event()
        shaky.before = lambda what, at=stage, go=free: what == at and go.wait(30)
        assert store.batch_set_v1(hashes(1, stage), slots) == [False]
        fill(pool, 2 * seed + 1)  # SGLang has given the slots to another prompt
        free.set()
        shaky.before = lambda what: None
        end = time.monotonic() + 5
        while store.values()["late_now"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert store.batch_get_v1(hashes(1, stage), slots) == [False]
        time.sleep(0.35)


def test_slots_that_are_no_whole_pages_are_refused(attach: Any, shaky: Shaky) -> None:
    import torch

    pool = trial.mha()
    store = attach(pool)
    for slots in (torch.arange(1, 17), torch.arange(16).flip(0), torch.arange(8), torch.arange(10**6, 10**6 + 16)):
        assert store.batch_set_v1(hashes(1), slots) == [False]
        assert store.batch_get_v1(hashes(1), slots) == [False]
    assert not shaky.pages
    assert store.batch_set_v1([], torch.arange(0)) == []
    assert store.batch_exists([]) == 0


def test_close_is_bounded_and_may_be_repeated(attach: Any, shaky: Shaky) -> None:
    pool = trial.mha()
    store = attach(pool)
    store.close()
    store.close()
    assert shaky.closed == 1
    slots = pool.alloc(16)
    assert store.batch_exists(hashes(1)) == 0
    assert store.batch_set_v1(hashes(1), slots) == [False]
    assert store.batch_get_v1(hashes(1), slots) == [False]


def test_clear_takes_what_is_this_ranks_of_this_model(attach: Any, tmp_path: Any) -> None:
    pool = trial.mha()
    storage = {"use": "file", "path": str(tmp_path), "gib": 0.1}
    mine, other = attach(pool, storage), attach(pool, storage, model="other")
    slots = pool.alloc(2 * 16)
    for store in (mine, other):
        assert store.batch_set_v1(hashes(2), slots) == [True, True]
    mine.clear()
    assert [store.batch_exists(hashes(2)) for store in (mine, other)] == [0, 2]


def test_stats_are_in_sglangs_form(attach: Any) -> None:
    pool = trial.mha()
    assert attach(pool).get_stats() is None
    store = attach(pool, metrics=True)
    slots = pool.alloc(2 * 16)
    store.batch_set_v1(hashes(2), slots)
    store.batch_get_v1(hashes(2), slots)
    stats = store.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([2], [2])
    assert stats.prefetch_bandwidth[0] > 0
    assert store.get_stats().backup_pgs == []
