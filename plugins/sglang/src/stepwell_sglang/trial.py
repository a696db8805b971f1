"""SGLang's cache without SGLang's server: real host pools on a CPU, and its controller's calls in their order.

For the comparison and for tests. SGLang is imported inside the functions, and has to be installed for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

BATCH = 128
"""Pages that the controller hands over at once."""


def mha(
    layout: str = "page_first",
    *,
    page: int = 16,
    layers: int = 4,
    heads: int = 2,
    dim: int = 64,
    v_dim: int | None = None,
    pages: int = 24,
    dtype: str = "float16",
) -> Any:
    """A host pool of keys and values by head; `v_dim`: values of another width."""
    import torch
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost

    kind = getattr(torch, dtype)
    k, v = (tuple(torch.zeros(page, heads, width, dtype=kind) for _ in range(layers)) for width in (dim, v_dim or dim))
    buffers = KVBuffers(k=k, v=v, k_data_ptrs=_pointers(k), v_data_ptrs=_pointers(v), layout=KVBufferLayout.NHD)
    info = MHABufferInfo(
        buffers=buffers,
        page_size=page,
        head_num=heads,
        head_dim=dim,
        v_head_dim=v_dim or dim,
        dtype=kind,
        device=torch.device("cpu"),
    )
    make = AsymmetricMHATokenToKVPoolHost if v_dim else MHATokenToKVPoolHost
    return make(info, 1.0, 0, page, layout, **_here(page, pages, layers))


def mla(
    layout: str = "page_first",
    *,
    page: int = 16,
    layers: int = 4,
    rank: int = 448,
    rope: int = 64,
    pages: int = 24,
    dtype: str = "float16",
) -> Any:
    """A host pool of latents."""
    import torch
    from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    kind = getattr(torch, dtype)
    rows = tuple(torch.zeros(page, 1, rank + rope, dtype=kind) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=_pointers(rows),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=page,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        kv_cache_dim=rank + rope,
        dtype=kind,
        device=torch.device("cpu"),
    )
    return MLATokenToKVPoolHost(info, 1.0, 0, page, layout, target_layer_num=layers, **_here(page, pages, layers))


def config(
    extra: Mapping[str, object] | None,
    *,
    mla: bool = False,
    model: str = "model",
    tp: tuple[int, int] = (0, 1),
    pp: tuple[int, int] = (0, 1),
    cp: tuple[int, int] = (0, 1),
    metrics: bool = False,
) -> Any:
    """What SGLang's controller tells a backend."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=tp[0],
        tp_size=tp[1],
        pp_rank=pp[0],
        pp_size=pp[1],
        attn_cp_rank=cp[0],
        attn_cp_size=cp[1],
        is_mla_model=mla,
        enable_storage_metrics=metrics,
        is_page_first_layout=True,
        model_name=model,
        extra_config=None if extra is None else json.loads(json.dumps(extra)),
    )


def dynamic(storage: Mapping[str, object], *, interface_v1: int = 1, **more: object) -> dict[str, object]:
    """The extra config that makes SGLang load Stepwell."""
    return {
        "backend_name": "stepwell",
        "module_path": "stepwell_sglang.backend",
        "class_name": "StepwellStore",
        "interface_v1": interface_v1,
        "storage": dict(storage),
        **more,
    }


def attach(name: str, pool: Any, settings: Any) -> Any:
    """A backend as the controller makes it."""
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    backend = StorageBackendFactory.create_backend(name, settings, pool)
    backend.register_mem_pool_host(pool)
    backend.on_host_pools_registered()
    return backend


class Driver:
    """Backs up and prefetches, batch by batch, by slot or (`by_slot` false) as flat tensors."""

    def __init__(self, backend: Any, pool: Any, *, by_slot: bool = True) -> None:
        self.backend, self._pool, self._by_slot = backend, pool, by_slot

    def backup(self, hashes: Sequence[str], slots: Any) -> int:
        """Store pages; how many, up to the first batch with one that failed."""
        stored = 0
        for some, where in self._batches(hashes, slots):
            if self._by_slot:
                good = all(self.backend.batch_set_v1(some, where, None))
            else:
                step = self._pool.page_size
                pages = [self._pool.get_data_page(where[at * step]) for at in range(len(some))]
                good = self.backend.batch_set(some, pages)
            if not good:
                break
            stored += len(some)
        return stored

    def prefetch(self, hashes: Sequence[str], slots: Any) -> int:
        """Ask what is there, and fill slots with it; how many pages, up to the first that failed."""
        held = 0
        for some, _ in self._batches(hashes, slots):
            hit = self.backend.batch_exists(some, None)
            held += hit
            if hit < len(some):
                break
        filled = 0
        for some, where in self._batches(hashes[:held], slots):
            got = self._by_slots(some, where) if self._by_slot else self._by_tensors(some, where)
            filled += got
            if got < len(some):
                break
        return filled

    def _by_slots(self, hashes: Sequence[str], slots: Any) -> int:
        good = self.backend.batch_get_v1(hashes, slots, None)
        return next((at for at, one in enumerate(good) if not one), len(good))

    def _by_tensors(self, hashes: Sequence[str], slots: Any) -> int:
        pages = self.backend.batch_get(hashes, [self._pool.get_dummy_flat_data_page() for _ in hashes])
        for at, page in enumerate(pages):
            if page is None:
                return at
            self._pool.set_from_flat_data_page(slots[at * self._pool.page_size], page)
        return len(pages)

    def _batches(self, hashes: Sequence[str], slots: Any) -> list[tuple[list[str], Any]]:
        step = self._pool.page_size
        cuts = [(at, min(at + BATCH, len(hashes))) for at in range(0, len(hashes), BATCH)]
        return [(list(hashes[at:end]), slots[at * step : end * step]) for at, end in cuts]


def _pointers(tensors: Sequence[Any]) -> Any:
    import torch

    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64)


def _here(page: int, pages: int, layers: int) -> dict[str, Any]:
    return {
        "pin_memory": False,
        "device_capacity_tokens": page * pages,
        "start_layer": 0,
        "end_layer": layers,
    }
