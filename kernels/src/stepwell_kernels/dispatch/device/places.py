"""Rows copied to where they are named, in one pass."""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def place_rows_kernel(tokens, slots, out, hidden, apart, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """A block of a token's numbers a program; tokens are `apart` numbers from each other."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    row = tl.load(tokens + token * apart + at, mask=inside, other=0)
    for k in tl.static_range(TOP_K):
        slot = tl.load(slots + token * TOP_K + k).to(tl.int64)
        tl.store(out + slot * hidden + at, row, mask=inside & (slot >= 0))


def place_rows_cuda(tokens: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """See `permute.place_rows`; `out` is contiguous."""
    (n, top_k), hidden = slots.shape, tokens.shape[1]
    if n == 0:
        return
    place_rows_kernel[(n, triton.cdiv(hidden, BLOCK))](
        tokens, slots.contiguous(), out, hidden, tokens.stride(0), TOP_K=top_k, BLOCK=BLOCK
    )
