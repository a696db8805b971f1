"""Rows picked and summed in one pass: what a token's experts answered becomes its sum."""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def sum_rows_kernel(
    rows, slots, weights, out, hidden, TOP_K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of a token's numbers a program."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        slot = tl.load(slots + token * TOP_K + k).to(tl.int64)
        row = tl.load(rows + slot * hidden + at, mask=inside & (slot >= 0), other=0).to(tl.float32)
        if WEIGHTED:
            row *= tl.load(weights + token * TOP_K + k, mask=slot >= 0, other=0).to(tl.float32)
        total += row
    tl.store(out + token * hidden + at, total.to(out.dtype.element_ty), mask=inside)


def sum_rows_cuda(rows: torch.Tensor, slots: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """See `permute.sum_rows`."""
    (n, top_k), hidden = slots.shape, rows.shape[1]
    out = torch.empty((n, hidden), dtype=rows.dtype, device=rows.device)
    if n == 0:
        return out
    weighted = weights is not None
    given = slots if weights is None else weights.contiguous()
    sum_rows_kernel[(n, triton.cdiv(hidden, BLOCK))](
        rows.contiguous(), slots.contiguous(), given, out, hidden, TOP_K=top_k, WEIGHTED=weighted, BLOCK=BLOCK
    )
    return out
