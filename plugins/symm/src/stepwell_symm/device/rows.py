"""A token's numbers: as they are, or as 8-bit floats with a scale for each run of 128."""
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from stepwell_symm.device.waits import at_peer

RUN: tl.constexpr = tl.constexpr(128)
LARGEST: tl.constexpr = tl.constexpr(448.0)
"""Of an 8-bit float with four bits of exponent."""


@triton.jit
def words_of(tokens, row, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """A row as 32-bit words; no other kernel on this rank reads it soon."""
    at = tl.arange(0, BLOCK)
    return tl.load(tokens + row * WORDS + at, mask=at < WORDS, other=0)


@triton.jit
def words_put(there, row, words, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """The same, where it goes."""
    at = tl.arange(0, BLOCK)
    tl.store(there + row * WORDS + at, words, mask=at < WORDS)


@triton.jit
def quantised(tokens, row, HIDDEN: tl.constexpr, RUNS: tl.constexpr):
    """(8-bit floats [RUNS, RUN], scales [RUNS]) of a row."""
    run = tl.arange(0, RUNS)[:, None]
    at = run * RUN + tl.arange(0, RUN)[None, :]
    values = tl.load(tokens + row * HIDDEN + at, mask=run < HIDDEN // RUN, other=0.0).to(tl.float32)
    scales = tl.maximum(tl.max(tl.abs(values), 1), 1e-10) / LARGEST
    return (values / scales[:, None]).to(tl.float8e4nv), scales


@triton.jit
def quantised_put(there, scales_there, row, values, scales, HIDDEN: tl.constexpr, RUNS: tl.constexpr):
    """The same, where it goes."""
    run = tl.arange(0, RUNS)
    at = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    tl.store(there + row * HIDDEN + at, values, mask=run[:, None] < HIDDEN // RUN)
    tl.store(scales_there + row * (HIDDEN // RUN) + run, scales, mask=run < HIDDEN // RUN)


@triton.jit
def sent(
    desk,
    peer,
    row,
    words,
    values,
    scales,
    TOKENS: tl.constexpr,
    SCALES: tl.constexpr,
    HIDDEN: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    RUNS: tl.constexpr,
    EIGHT: tl.constexpr,
):
    """Store a row into a rank's memory, in the form that it travels in."""
    if EIGHT:
        there = at_peer(desk, peer, TOKENS, tl.float8e4nv)
        quantised_put(there, at_peer(desk, peer, SCALES, tl.float32), row, values, scales, HIDDEN, RUNS)
    else:
        words_put(at_peer(desk, peer, TOKENS, tl.int32), row, words, WORDS, BLOCK)
