"""Whose page is whose: everything that decides how a page looks is in its key."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell_sglang import trial
from stepwell_sglang.names import Names

from .conftest import Shaky, content, fill, hashes


def keep(store: Any, pool: Any, names: list[str]) -> Any:
    slots = pool.alloc(len(names) * pool.page_size)
    assert store.batch_set_v1(names, slots) == [True] * len(names)
    return slots


@pytest.mark.parametrize(
    ("pool", "settings"),
    [
        (lambda: trial.mha(dtype="bfloat16"), {}),
        (lambda: trial.mha(dtype="uint8", dim=128), {}),
        (lambda: trial.mha("page_first_direct"), {}),
        (lambda: trial.mha(page=8, layers=8), {}),
        (lambda: trial.mha(heads=1, dim=128), {}),
        (trial.mha, {"model": "other"}),
        (trial.mha, {"model": None}),
        (trial.mha, {"more": {"revision": "2"}}),
    ],
    ids=["dtype", "width", "layout", "page size", "heads", "model", "no model", "weights"],
)
def test_b059_pages_of_another_form_are_not_found(attach: Any, shaky: Shaky, pool: Any, settings: Any) -> None:
    mine = trial.mha()
    keep(attach(mine), mine, hashes(4))
    other = pool()
    store = attach(other, **settings)
    assert store.batch_exists(hashes(2)) == 0
    assert store.batch_get_v1(hashes(2), other.alloc(2 * other.page_size)) == [False, False]
    assert attach(mine).batch_exists(hashes(4)) == 4


def test_b060_adapters_and_salts_are_in_the_hash_that_comes(attach: Any, shaky: Shaky) -> None:
    from sglang.srt.mem_cache.utils import storage_namespace_seed

    seeds = [storage_namespace_seed(*both) for both in (("a", None), ("b", None), (None, "a"), (None, None))]
    pool = trial.mha()
    store = attach(pool)
    keep(store, pool, hashes(2, str(seeds[0])))
    assert [store.batch_exists(hashes(2, str(seed))) for seed in seeds] == [2, 0, 0, 0]


def test_b061_ranks_that_hold_different_shares_share_nothing(attach: Any, shaky: Shaky) -> None:
    ranks = [{"tp": (tp, 2), "pp": (pp, 2), "cp": (cp, 2)} for tp in range(2) for pp in range(2) for cp in range(2)]
    stores = []
    for seed, rank in enumerate(ranks):
        pool = trial.mha()
        fill(pool, seed)
        stores.append((attach(pool, **rank), pool))
    before = [content(pool, keep(store, pool, hashes(2))) for store, pool in stores]
    for (store, pool), expected in zip(stores, before, strict=True):
        target = pool.alloc(2 * 16)
        assert store.batch_get_v1(hashes(2), target) == [True, True]
        assert content(pool, target) == expected


def test_latents_are_written_once_and_read_by_every_rank(attach: Any, shaky: Shaky) -> None:
    writer, reader = trial.mla(), trial.mla()
    fill(writer, 1)
    first, second = attach(writer, tp=(0, 2)), attach(reader, tp=(1, 2))
    slots = reader.alloc(3 * 16)
    assert second.batch_set_v1(hashes(3), slots) == [True] * 3, "the writer does it"
    assert not shaky.pages
    kept = keep(first, writer, hashes(3))
    assert second.batch_get_v1(hashes(3), slots) == [True] * 3
    assert content(reader, slots) == content(writer, kept)
    other = attach(trial.mla(), tp=(0, 4))
    assert other.batch_exists(hashes(3)) == 3, "latents do not depend on how many ranks there are"
    assert attach(trial.mla(), cp=(1, 2)).batch_exists(hashes(3)) == 0


def test_keys_are_stable_and_their_parts_cannot_run_together() -> None:
    names = Names({"model": "m", "pool": "kv"})
    (digest,) = names.digests(["00ff"])
    assert digest.hex().startswith(GOLDEN)
    assert len(names.keys([digest], [names.tag("0")])[0]) == 40
    ways = [{"model": "m", "pool": "kv"}, {"model": "mp", "ool": "kv"}, {"model": "m"}, {"model": "m", "pool": ""}]
    assert len({Names(parts).digests(["00ff"])[0] for parts in ways}) == len(ways)
    assert len({names.tag(part) for part in ("0", "1", "seal", "flat")}) == 4


GOLDEN = "abf56c758fc5a8b8"
