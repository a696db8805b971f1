"""K and V of a batch, into their pages."""

# ruff: noqa: N803 - constants of a kernel are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.paged.place import Tables
from stepwell_kernels.pool import within


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    token_slots: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write `k` and `v` [tokens, kv_heads, their dim] into a layer's pages [pages, page_size, kv_heads, their dim].

    Only `k` where `values` are a view of `keys`.
    Tokens of the idle slot are left out, and so is a token without a page.
    """
    tokens, heads, dim = k.shape
    if not tokens:
        return
    value_dim = 0 if within(values, keys) else v.shape[2]
    _write[(tokens,)](
        k,
        v,
        keys,
        values,
        tables.pages,
        token_slots,
        positions,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        tables.pages.stride(0),
        tables.idle,
        PAGE_SIZE=tables.page_size,
        HEADS=heads,
        HEADS_PADDED=triton.next_power_of_2(heads),
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        VALUE_DIM=value_dim,
        VALUE_PADDED=triton.next_power_of_2(max(1, value_dim)),
    )


@triton.jit(do_not_specialize=["idle"])
def _write(
    k,
    v,
    keys,
    values,
    pages,
    token_slots,
    positions,
    k_token,
    k_head,
    v_token,
    v_head,
    table_line,
    idle,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(token_slots + token)
    if slot == idle:
        return
    position = tl.load(positions + token)
    page = tl.load(pages + slot.to(tl.int64) * table_line + position // PAGE_SIZE)
    if page < 0:
        return
    place = (page.to(tl.int64) * PAGE_SIZE + position % PAGE_SIZE) * HEADS
    heads = tl.arange(0, HEADS_PADDED)[:, None]
    dims = tl.arange(0, DIM_PADDED)[None, :]
    own = (heads < HEADS) & (dims < DIM)
    tl.store(keys + (place + heads) * DIM + dims, tl.load(k + token * k_token + heads * k_head + dims, own), own)
    if VALUE_DIM > 0:
        dims = tl.arange(0, VALUE_PADDED)[None, :]
        own = (heads < HEADS) & (dims < VALUE_DIM)
        tl.store(
            values + (place + heads) * VALUE_DIM + dims, tl.load(v + token * v_token + heads * v_head + dims, own), own
        )
