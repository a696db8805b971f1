"""Models with pools beside KV: what a prefix needs of each, and the pages of all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_sglang import trial
from stepwell_sglang.hits import Side, reach

from .conftest import Shaky, content, fill, hashes


def bits(text: str) -> list[bool]:
    return [one == "1" for one in text]


@pytest.mark.parametrize(
    ("kv", "sides", "pages", "lengths"),
    [
        (4, [], 4, [1, 2, 3, 4]),
        (0, [Side("indexer", "all_pages", bits(""))], 0, []),
        (4, [Side("indexer", "all_pages", bits("1110"))], 3, [1, 2, 3]),
        (4, [Side("indexer", "all_pages", bits("0111"))], 0, []),
        (4, [Side("mamba", "trailing_pages", bits("0101"))], 4, [2, 4]),
        (4, [Side("mamba", "trailing_pages", bits("0100"))], 2, [2]),
        (5, [Side("swa", "trailing_pages", bits("00111"), 2)], 5, [4, 5]),
        (3, [Side("swa", "trailing_pages", bits("110"), 4)], 2, [1, 2]),
        (4, [Side("a", "all_pages", bits("1110")), Side("b", "trailing_pages", bits("1011"))], 3, [1, 3]),
        (4, [Side("c", "block_groups", bits("110"), block_pages=2, group_pages=2)], 4, [1, 2, 3, 4]),
        (4, [Side("c", "block_groups", bits("0"), block_pages=2, group_pages=1)], 4, [1, 2, 3, 4]),
    ],
)
def test_how_far_a_prefix_reaches(kv: int, sides: list[Side], pages: int, lengths: list[int]) -> None:
    found = reach(kv, sides)
    assert (found.pages, found.lengths) == (pages, lengths)


@given(
    kv=st.integers(0, 8),
    window=st.integers(1, 5),
    present=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_a_window_is_whole_wherever_it_is_said_to_be(kv: int, window: int, present: list[bool]) -> None:
    found = reach(kv, [Side("swa", "trailing_pages", present, window)])
    expected = [n for n in range(1, kv + 1) if all(present[max(0, n - window) : n])]
    assert found.lengths == expected
    assert found.pools.get("swa", 0) == max(expected, default=0)


def transfer(name: str, names: list[str], slots: Any = None, policy: str = "all_pages", **more: int) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    return PoolTransfer(name=PoolName(name), host_indices=slots, keys=names, hit_policy=PoolHitPolicy(policy), **more)


def hybrid(storage: dict[str, object], *sides: tuple[str, Any], mla: bool = False, tp: Any = (0, 1)) -> Any:
    """A store with an anchor and pools beside it, registered in the order that the hybrid controller has."""
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    anchor = trial.mla() if mla else trial.mha()
    settings = trial.config(trial.dynamic(storage), mla=mla, tp=tp)
    store = StorageBackendFactory.create_backend("dynamic", settings, anchor)
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(anchor, PoolName.KV)
    for name, pool in sides:
        store.register_mem_host_pool_v2(pool, PoolName(name))
    store.on_host_pools_registered()
    return store, anchor


@pytest.mark.parametrize("use", ["memory", "file"])
def test_pools_beside_kv_come_back_as_they_were(tmp_path: Any, use: str) -> None:
    storage = {"use": use, **({"path": str(tmp_path), "gib": 0.2} if use == "file" else {})}
    swa, state = trial.mha(layers=2), mamba()
    store, anchor = hybrid(storage, ("swa", swa), ("mamba", state))
    pools = {"kv": anchor, "swa": swa, "mamba": state}
    for seed, pool in enumerate(pools.values()):
        fill(pool, seed)
    names = hashes(6)
    slots = {name: pool.alloc(2 * 6 * pool.page_size) for name, pool in pools.items()}
    half = {name: (one[: len(one) // 2], one[len(one) // 2 :]) for name, one in slots.items()}
    before = {name: content(pools[name], one[0]) for name, one in half.items()}
    assert store.batch_set_v1(names, half["kv"][0]) == [True] * 6
    window = [transfer("swa", names[-3:], half["swa"][0][3 * 16 :]), transfer("mamba", names, half["mamba"][0])]
    assert store.batch_set_v2(window) == {"swa": [True] * 3, "mamba": [True] * 6}
    found = store.batch_exists_v2(
        names,
        [transfer("swa", names[-2:], policy="trailing_pages"), transfer("mamba", names[-1:], policy="trailing_pages")],
    )
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [5, 6])
    assert found.extra_pool_hit_pages == {"kv": 6, "swa": 6, "mamba": 6}
    back = [transfer("swa", names[-3:], half["swa"][1][3 * 16 :]), transfer("mamba", names, half["mamba"][1])]
    assert store.batch_get_v2(back) == {"swa": [True] * 3, "mamba": [True] * 6}
    assert content(state, half["mamba"][1]) == before["mamba"]
    assert content(swa, half["swa"][1][3 * 16 :]) == before["swa"][6:]
    assert store.batch_get_v2([transfer("swa", names[:1], half["swa"][1][:16])]) == {"swa": [False]}
    store.close()


def test_what_does_not_fit_has_failed_page_by_page(shaky: Shaky) -> None:
    store, anchor = hybrid({"use": "memory"})
    slots = anchor.alloc(32)
    assert store.batch_set_v2([transfer("kv", hashes(3), slots)]) == {"kv": [False] * 3}
    assert store.batch_set_v2([transfer("swa", hashes(2), slots)]) == {"swa": [False] * 2}
    assert store.batch_get_v2([transfer("kv", hashes(2))]) == {"kv": [False] * 2}
    assert store.batch_exists_v2(hashes(2), [transfer("swa", hashes(1))]).kv_hit_pages == 0
    store.close()


def test_blocks_add_and_never_limit(shaky: Shaky) -> None:
    second = trial.mha(layers=1)
    store, anchor = hybrid({"use": "memory"}, ("deepseek_v4_c4", second))
    names = hashes(8)
    store.batch_set_v1(names, anchor.alloc(8 * 16))
    asked = {"policy": "block_groups", "block_pages": 4, "group_pages": 1}
    block = transfer("deepseek_v4_c4", [names[3]], second.alloc(16), **asked)
    assert store.batch_set_v2([block]) == {"deepseek_v4_c4": [True]}
    found = store.batch_exists_v2(names, [transfer("deepseek_v4_c4", [names[3], names[7]], **asked)])
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (8, {"kv": 8, "deepseek_v4_c4": 4})
    found = store.batch_exists_v2(names, [transfer("deepseek_v4_c4", [], **asked)])
    assert found.extra_pool_hit_pages == {"kv": 8, "deepseek_v4_c4": 4}, "a block is named by the page that ends it"
    store.close()


def test_recurrent_states_of_a_latent_model_are_each_ranks_own(shaky: Shaky) -> None:
    stores = []
    for rank in range(2):
        state = mamba()
        fill(state, rank)
        store, _ = hybrid({"use": "memory"}, ("mamba", state), mla=True, tp=(rank, 2))
        slots = state.alloc(2)
        assert store.batch_set_v2([transfer("mamba", hashes(2), slots)]) == {"mamba": [True, True]}
        stores.append((store, state, content(state, slots)))
    for store, state, before in stores:
        slots = state.alloc(2)
        assert store.batch_get_v2([transfer("mamba", hashes(2), slots)]) == {"mamba": [True, True]}
        assert content(state, slots) == before
        store.close()


def test_an_anchor_without_memory_is_held_by_its_pools(shaky: Shaky) -> None:
    from types import SimpleNamespace

    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    anchor = SimpleNamespace(kv_buffer=None, page_size=16, layout="page_first", size=64)
    side = trial.mla()
    settings = trial.config(trial.dynamic({"use": "memory"}), mla=True)
    store = StorageBackendFactory.create_backend("dynamic", settings, anchor)
    store.register_mem_pool_host(anchor)
    store.register_mem_host_pool_v2(side, "deepseek_v4_c4")
    store.on_host_pools_registered()
    names, slots = hashes(3), side.alloc(3 * 16)
    assert store.batch_set_v1(names, slots) == [True] * 3
    assert store.batch_set_v2([transfer("deepseek_v4_c4", names[:2], slots[:32])]) == {"deepseek_v4_c4": [True, True]}
    assert store.batch_exists_v2(names, [transfer("deepseek_v4_c4", names)]).kv_hit_pages == 2
    store.close()


def mamba() -> Any:
    """A real pool of recurrent states: a page is a state, in two tensors."""
    import torch
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    temporal, conv = torch.zeros(3, 4, 2, 8, 16), torch.zeros(3, 4, 24, 3, dtype=torch.bfloat16)
    info = MambaStateBufferInfo(conv=(conv,), temporal=temporal, extra_checkpoint_buffers=())
    return MambaPoolHost(info, 4.0, 0, device_capacity=16, pin_memory=False, layout="page_first")
