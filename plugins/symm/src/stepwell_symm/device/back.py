"""Sums back to the ranks whose tokens they are, and there the sum over ranks."""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_symm.device.rows import words_of, words_put
from stepwell_symm.device.waits import at_peer, flag_awaited, given_up, raised, turn_ended, turn_of


@triton.jit
def back_kernel(
    desk,
    outputs,
    begins,
    BACK: tl.constexpr,
    SUMS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
    FLAGS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy each other rank's rows of `outputs`, which lie together, CHUNK rows at a time with a flag behind each.

    `begins` [WORLD + 1]: where each rank's rows begin. This rank's own stay where they are.
    """
    if given_up(desk) != 0:
        return
    turn = turn_of(desk)
    for turned in tl.static_range(WORLD - 1):
        peer = (RANK + 1 + turned) % WORLD
        begin = tl.load(begins + peer).to(tl.int64)
        rows = (tl.load(begins + peer + 1) - begin).to(tl.int32)
        there = at_peer(desk, peer, SUMS, tl.int32)
        flags = at_peer(desk, peer, BACK, tl.int32) + RANK * FLAGS
        for chunk in range(tl.program_id(0), tl.cdiv(rows, CHUNK), tl.num_programs(0)):
            for row in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, rows)):
                words = words_of(outputs, begin + row, WORDS, BLOCK)
                words_put(there, tl.full((), RANK * CAPACITY, tl.int64) + row, words, WORDS, BLOCK)
            raised(flags + chunk, turn)


@triton.jit(do_not_specialize=["count"])
def gather_kernel(
    desk,
    slots,
    outputs,
    begins,
    sums,
    count,
    ACKS: tl.constexpr,
    BACK: tl.constexpr,
    SUMS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
    FLAGS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    DIRECT: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Add up each token's parts in the order of ranks, as they come, and end the turn.

    `slots` [tokens, WORLD]: which row of a rank's part a token has, or -1. DIRECT: this rank's own part is in `outputs`
    from `begins[RANK]` on.
    """
    turn = turn_of(desk)
    kind: tl.constexpr = sums.dtype.element_ty
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    came = at_peer(desk, RANK, SUMS, kind)
    flags = at_peer(desk, RANK, BACK, tl.int32)
    for token in range(tl.program_id(0), count, tl.num_programs(0)):
        total = tl.zeros((BLOCK,), tl.float32)
        for peer in tl.static_range(WORLD):
            slot = tl.load(slots + token * WORLD + peer)
            if slot >= 0:
                if DIRECT and peer == RANK:
                    row = (tl.load(begins + RANK) + slot).to(tl.int64)
                    part = tl.load(outputs + row * HIDDEN + at, mask=inside, other=0.0)
                else:
                    came_back = flag_awaited(flags + peer * FLAGS + slot // CHUNK, turn.to(tl.int32), desk, TIMED)
                    total += tl.where(came_back, 0.0, float("nan"))  # so that nobody takes what is missing for a sum
                    row = (slot + peer * CAPACITY).to(tl.int64)
                    part = tl.load(came + row * HIDDEN + at, mask=inside, other=0.0)
                total += part.to(tl.float32)
        tl.store(sums + token * HIDDEN + at, total.to(kind), mask=inside)
    turn_ended(desk, turn, ACKS, RANK, WORLD)
