"""Tokens to where they belong, each once a rank, and the wait for those of the others."""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_symm.device.rows import quantised, sent, words_of
from stepwell_symm.device.waits import at_peer, flags_awaited, given_up, raised, turn_of


@triton.jit
def choices_put(
    desk,
    peer,
    row,
    chosen,
    shares,
    own,
    EXPERTS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    TOP: tl.constexpr,
):
    """Which of a rank's experts a row is for (-1: one elsewhere), and what each counts."""
    which = tl.arange(0, triton.next_power_of_2(TOP))
    local = chosen - peer * own
    local = tl.where((chosen >= 0) & (local >= 0) & (local < own), local, -1)
    tl.store(at_peer(desk, peer, EXPERTS, tl.int64) + row * TOP + which, local, mask=which < TOP)
    tl.store(at_peer(desk, peer, WEIGHTS, tl.float32) + row * TOP + which, shares, mask=which < TOP)


@triton.jit(do_not_specialize=["count"])
def send_kernel(
    desk,
    tokens,
    experts,
    weights,
    slots,
    book,
    count,
    own,
    SENT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    EXPERTS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    TOP: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """Each program takes tokens of its own, reads it once, and stores it into every rank that it goes to.

    `tokens` are 32-bit words, or numbers where EIGHT. Each program tells every rank when all of its own are there.
    """
    if given_up(desk) != 0:
        return
    turn = turn_of(desk)
    which = tl.arange(0, triton.next_power_of_2(TOP))
    for token in range(tl.program_id(0), count, tl.num_programs(0)):
        words, values, scales = 0, 0, 0
        if EIGHT:
            values, scales = quantised(tokens, token, HIDDEN, RUNS)
        else:
            words = words_of(tokens, token, WORDS, BLOCK)
        chosen = tl.load(experts + token * TOP + which, mask=which < TOP, other=-1)
        shares = tl.load(weights + token * TOP + which, mask=which < TOP, other=0.0)
        for turned in tl.static_range(WORLD):
            peer = (RANK + 1 + turned) % WORLD
            slot = tl.load(slots + token * WORLD + peer)
            if slot >= 0:
                row = (tl.load(book + peer) + slot).to(tl.int64)
                sent(
                    desk, peer, row, words, values, scales, TOKENS, SCALES, HIDDEN, WORDS, BLOCK, RUNS, EIGHT
                )  # fmt: skip
                choices_put(desk, peer, row, chosen, shares, own, EXPERTS, WEIGHTS, TOP)
    for turned in tl.static_range(WORLD):
        peer = (RANK + 1 + turned) % WORLD
        raised(at_peer(desk, peer, SENT, tl.int32) + RANK * tl.num_programs(0) + tl.program_id(0), turn)


@triton.jit
def arrive_kernel(
    desk, SENT: tl.constexpr, RANK: tl.constexpr, FLAGS: tl.constexpr, BLOCK: tl.constexpr, TIMED: tl.constexpr
):
    """Return once all programs of all ranks have sent what they have. One program; kernels after it read the rows."""
    turn = turn_of(desk)
    at = tl.arange(0, BLOCK)
    flags = at_peer(desk, RANK, SENT, tl.int32)
    flags_awaited(flags + at, at < FLAGS, turn.to(tl.int32), desk, TIMED)
