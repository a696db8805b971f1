"""Real host pools of SGLang on a CPU, and the storage config that its controller would make."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

PAGE, LAYERS, TOKENS = 16, 4, 16 * 24
CPU = torch.device("cpu")


def pointers(tensors):
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64)


def mha(layout="page_first", *, page=PAGE, layers=LAYERS, heads=2, dim=64, v_dim=None, tokens=TOKENS, dtype=torch.float16):
    k = tuple(torch.zeros(page, heads, dim, dtype=dtype) for _ in range(layers))
    v = tuple(torch.zeros(page, heads, v_dim or dim, dtype=dtype) for _ in range(layers))
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=pointers(k), v_data_ptrs=pointers(v), layout=KVBufferLayout.NHD),
        page_size=page,
        head_num=heads,
        head_dim=dim,
        v_head_dim=v_dim or dim,
        dtype=dtype,
        device=CPU,
    )
    cls = AsymmetricMHATokenToKVPoolHost if v_dim else MHATokenToKVPoolHost
    return cls(info, 1.0, 0, page, layout, pin_memory=False, device_capacity_tokens=tokens, start_layer=0, end_layer=layers)


def mla(layout="page_first", *, page=PAGE, layers=LAYERS, rank=448, rope=64, tokens=TOKENS, dtype=torch.float16):
    rows = tuple(torch.zeros(page, 1, rank + rope, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=pointers(rows),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=page,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        kv_cache_dim=rank + rope,
        dtype=dtype,
        device=CPU,
    )
    return MLATokenToKVPoolHost(
        info, 1.0, 0, page, layout, pin_memory=False, device_capacity_tokens=tokens, start_layer=0, end_layer=layers,
        target_layer_num=layers,
    )


def config(extra, *, mla=False, model="model", tp=(0, 1), pp=(0, 1), cp=(0, 1), metrics=False):
    return HiCacheStorageConfig(
        tp_rank=tp[0], tp_size=tp[1], pp_rank=pp[0], pp_size=pp[1], attn_cp_rank=cp[0], attn_cp_size=cp[1],
        is_mla_model=mla, enable_storage_metrics=metrics, is_page_first_layout=True, model_name=model, extra_config=extra,
    )
