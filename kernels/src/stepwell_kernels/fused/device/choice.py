"""The most likely token of each row, and where the row's next step finds it."""
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_kernels.fused.device.pieces import dependent, early, waited

PIECE = 4096
"""Logits of a program."""


@triton.jit
def piece_kernel(logits, keys, vocab, stride, pieces, PIECE: tl.constexpr, PDL: tl.constexpr):
    """The highest of a piece of a row, as a key that sorts as the logits do; of equal ones the first."""
    early(PDL)
    waited(PDL)
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    column = piece * PIECE + tl.arange(0, PIECE)
    inside = column < vocab
    value = tl.load(logits + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(value == value, order, 0x7FFFFFFF)
    # key   | order of the logit: 32 bits | how far its token is from the last possible: 32 bits |
    key = (order.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)
    key = tl.where(inside, key, -(1 << 63))
    tl.store(keys + row * pieces + piece, tl.max(key, 0))


@triton.jit
def choice_kernel(keys, tokens, slots, last, pieces, PIECES: tl.constexpr, KEEP: tl.constexpr, PDL: tl.constexpr):
    """The best of a row's pieces."""
    early(PDL)
    waited(PDL)
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    key = tl.max(tl.load(keys + row * pieces + piece, mask=piece < pieces, other=-(1 << 63)), 0)
    token = 0x7FFFFFFF - (key & 0x7FFFFFFF)
    tl.store(tokens + row, token)
    if KEEP:
        tl.store(last + tl.load(slots + row), token.to(tl.int32))


def most_likely(
    logits: torch.Tensor, slots: torch.Tensor | None = None, last: torch.Tensor | None = None
) -> torch.Tensor:
    """See `ops.most_likely`."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    pieces = triton.cdiv(vocab, PIECE)
    keys = torch.empty((rows, pieces), dtype=torch.int64, device=logits.device)
    pdl = dependent(logits.device)
    piece_kernel[(rows, pieces)](
        logits, keys, vocab, logits.stride(0), pieces, PIECE=PIECE, PDL=pdl, num_warps=4, launch_pdl=pdl > 0
    )
    keep = slots is not None and last is not None
    choice_kernel[(rows,)](
        keys,
        tokens,
        slots if keep else tokens,
        last if keep else tokens,
        pieces,
        PIECES=triton.next_power_of_2(pieces),
        KEEP=keep,
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl > 0,
    )
    return tokens
