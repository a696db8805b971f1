"""How ranks tell each other what is there: words of a turn, stored after what they speak of, and bounded waits.

Each batch in flight has a desk, int64 words that only its own rank touches; TURN is how often it was used, so that a
captured graph goes on counting. A flag holds the turn that it was last set in, so nothing is ever cleared. A desk is
used anew once every rank has acknowledged the turn before, which it does when it has read all that it was sent.
"""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

TURN: tl.constexpr = tl.constexpr(0)
TICKET: tl.constexpr = tl.constexpr(1)
"""Programs of the last kernel of a turn that have ended."""
LOST: tl.constexpr = tl.constexpr(2)
"""Address of two words: whether waiting was given up, and the address of the host's word for the same."""
PATIENCE: tl.constexpr = tl.constexpr(3)
"""Nanoseconds, or rounds where there is no timer."""
PEERS: tl.constexpr = tl.constexpr(4)
"""From here on: where the memory of this desk begins on each rank."""


@triton.jit
def turn_of(desk):
    """The turn that the batch at this desk is."""
    return tl.load(desk + TURN) + 1


@triton.jit
def at_peer(desk, peer, PLACE: tl.constexpr, KIND: tl.constexpr):
    """Pointer to a place in a rank's memory, which is aligned to 16 bytes."""
    address = tl.load(desk + PEERS + peer) + PLACE
    return tl.multiple_of(address.to(tl.pointer_type(KIND)), 16)


@triton.jit
def given_up(desk):
    """Not 0 where a rank is lost. Nothing is stored into others from then on: they may still read what is there."""
    lost = tl.load(desk + LOST).to(tl.pointer_type(tl.int64))
    return tl.atomic_add(lost, 0, sem="relaxed", scope="gpu")  # the same to all threads, which leave a loop as one


@triton.jit
def _give_up(desk):
    lost = tl.load(desk + LOST).to(tl.pointer_type(tl.int64))
    tl.store(lost, 1)
    host = tl.load(lost + 1).to(tl.pointer_type(tl.int64))
    tl.store(host, 1)


@triton.jit
def _now(TIMED: tl.constexpr):
    if TIMED:
        return globaltimer()
    else:
        return tl.full((), 0, tl.int64)


@triton.jit
def flag_awaited(flag, turn, desk, TIMED: tl.constexpr):
    """Whether a flag of this rank came to `turn` before waiting was given up: then what it speaks of can be read."""
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    if seen < turn:
        since = _now(TIMED)
        rounds = tl.full((), 0, tl.int64)
        while (seen < turn) & (given_up(desk) == 0):
            rounds = _now(TIMED) - since if TIMED else rounds + 1
            if rounds > tl.load(desk + PATIENCE):
                _give_up(desk)
            seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    return seen >= turn


@triton.jit
def flags_awaited(flags, inside, turn, desk, TIMED: tl.constexpr):
    """Return once many flags have come to `turn`, or waiting was given up."""
    seen = tl.atomic_add(flags, 0, mask=inside, sem="acquire", scope="sys")
    lacking = tl.sum((inside & (seen < turn)).to(tl.int32), 0)
    if lacking > 0:
        since = _now(TIMED)
        rounds = tl.full((), 0, tl.int64)
        while (lacking > 0) & (given_up(desk) == 0):
            rounds = _now(TIMED) - since if TIMED else rounds + 1
            if rounds > tl.load(desk + PATIENCE):
                _give_up(desk)
            seen = tl.atomic_add(flags, 0, mask=inside, sem="acquire", scope="sys")
            lacking = tl.sum((inside & (seen < turn)).to(tl.int32), 0)
    tl.debug_barrier()


@triton.jit
def words_awaited(words, inside, turn, desk, TIMED: tl.constexpr):
    """Numbers [rows, columns] that come with their turn above them: each tells by itself whether it is there."""
    came = tl.load(words, mask=inside, other=0, volatile=True)
    lacking = tl.sum(tl.sum((inside & ((came >> 32) != turn)).to(tl.int32), 1), 0)
    if lacking > 0:
        since = _now(TIMED)
        rounds = tl.full((), 0, tl.int64)
        while (lacking > 0) & (given_up(desk) == 0):
            rounds = _now(TIMED) - since if TIMED else rounds + 1
            if rounds > tl.load(desk + PATIENCE):
                _give_up(desk)
            came = tl.load(words, mask=inside, other=0, volatile=True)
            lacking = tl.sum(tl.sum((inside & ((came >> 32) != turn)).to(tl.int32), 1), 0)
    return came.to(tl.int32)


@triton.jit
def word(number, turn):
    """A number with its turn above it."""
    return (turn << 32) | number.to(tl.int64)


@triton.jit
def raised(flag, turn):
    """Set a flag on another rank, seen there after all that this program has stored before."""
    tl.debug_barrier()
    tl.atomic_xchg(flag, turn.to(tl.int32), sem="release", scope="sys")


@triton.jit
def desk_free(desk, turn, ACKS: tl.constexpr, RANK: tl.constexpr, WORLD: tl.constexpr, TIMED: tl.constexpr):
    """Return once all ranks have read what was sent them in the turn before."""
    peer = tl.arange(0, triton.next_power_of_2(WORLD))
    acks = at_peer(desk, RANK, ACKS, tl.int32)
    flags_awaited(acks + peer, peer < WORLD, (turn - 1).to(tl.int32), desk, TIMED)


@triton.jit
def turn_ended(desk, turn, ACKS: tl.constexpr, RANK: tl.constexpr, WORLD: tl.constexpr):
    """The last program of a turn's last kernel that comes here ends the turn and acknowledges it to all ranks."""
    tl.debug_barrier()
    before = tl.atomic_add(desk + TICKET, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        tl.store(desk + TICKET, 0)
        tl.store(desk + TURN, turn)
        for peer in tl.static_range(WORLD):
            raised(at_peer(desk, peer, ACKS, tl.int32) + RANK, turn)
