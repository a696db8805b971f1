"""Draws in one Triton kernel, a program a row: nothing is sorted, and no row costs what another asks for.

A row that is cut finds three places in the order of its tokens (top-k's end, top-p's end, the draw's) by looking for
logits: how many tokens lie above a logit, and how much probability, grows as it falls. Eight logits are looked at in
one pass, so a handful of passes find one of 2^32. The passes read candidates only, gathered once it is known how near
the best a logit must be to be kept.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"
# Triton's functions are a language of their own, with constants in capitals.
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from stepwell_transformers.drawing.asked import Asked, Ints
from stepwell_transformers.drawing.counts import PROMPT, Counts
from stepwell_transformers.drawing.upload import send

BLOCK, WARPS = 4096, 16
NARROW = 1024
"""Candidates of a pass that looks at eight logits."""
MANY = 4096
"""Candidates that are few."""


def draw(logits: torch.Tensor, asked: Asked, counts: Counts, slots: Ints, lengths: Ints) -> torch.Tensor:
    """A token for each row; those whose tokens are counted have it counted."""
    rows, vocab = logits.shape
    sheet = send(logits.device, asked.sheet(slots, lengths))
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    candidates = (2, rows, vocab) if asked.cut[slots].any() else (2, 1, 1)
    scratch = torch.empty(candidates, dtype=torch.int32, device=logits.device)
    draw_rows[(rows,)](
        logits, logits.stride(0), sheet, counts.table, scratch, tokens, rows,
        VOCAB=vocab, PROMPT=PROMPT, BLOCK=BLOCK, NARROW=NARROW, MANY=MANY, num_warps=WARPS,
    )  # fmt: skip
    return tokens


@triton.jit(do_not_specialize=["rows"])  # compiled once for a model, not once for each number of rows
def draw_rows(
    logits, stride, sheet, table, scratch, tokens, rows, VOCAB: tl.constexpr,
    PROMPT: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Lines of `sheet`: see `asked`."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(sheet + row)
    heat = tl.load(sheet + rows + row).to(tl.float32)
    top_p = tl.load(sheet + 2 * rows + row).to(tl.float32)
    min_p = tl.load(sheet + 3 * rows + row).to(tl.float32)
    repetition = tl.load(sheet + 4 * rows + row).to(tl.float32)
    presence = tl.load(sheet + 5 * rows + row).to(tl.float32)
    frequency = tl.load(sheet + 6 * rows + row).to(tl.float32)
    top_k = tl.load(sheet + 7 * rows + row).to(tl.int32)
    counted = tl.load(sheet + 8 * rows + row).to(tl.int64)
    line = table + tl.maximum(counted, 0) * VOCAB
    source = logits + row * stride

    best = -float("inf")
    token = 0
    for start in range(0, VOCAB, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = _values(source, line, at, VOCAB, counted, repetition, presence, frequency, PROMPT)
        high = tl.max(values, 0)
        if high > best:
            best = high
            token = tl.min(tl.where(values == high, at, VOCAB), 0)

    if heat > 0:
        if (top_k <= VOCAB) | (top_p < 1) | (min_p > 0):
            token = _cut_draw(
                source, line, scratch + row * VOCAB, scratch + (rows + row) * VOCAB, VOCAB, counted, repetition,
                presence, frequency, best, heat, top_k, top_p, min_p, number, PROMPT, BLOCK, NARROW, MANY,
            )  # fmt: skip
        else:
            token = _whole_draw(
                source, line, VOCAB, counted, repetition, presence, frequency, best, heat, number, PROMPT, BLOCK
            )
    token = tl.minimum(tl.maximum(token, 0), VOCAB - 1)
    tl.store(tokens + row, token.to(tl.int64))
    if counted >= 0:
        tl.debug_barrier()
        tl.store(line + token, tl.load(line + token) + 1)


@triton.jit
def _values(source, line, at, VOCAB: tl.constexpr, counted, repetition, presence, frequency, PROMPT: tl.constexpr):
    """Logits after penalties, without a negative zero; -inf past the end."""
    values = tl.load(source + at, at < VOCAB, other=-float("inf")).to(tl.float32)
    if counted >= 0:
        had = tl.load(line + at, at < VOCAB, other=0)
        times = had & (PROMPT - 1)
        repeated = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
        values = tl.where(had != 0, repeated, values)
        values = tl.where(times > 0, values - (presence + frequency * times.to(tl.float32)), values)
    return tl.where(values == 0, 0.0, values)


@triton.jit
def _weights(values, best, heat):
    """Probabilities but for a factor: 1 for the most likely."""
    return tl.exp(tl.div_rn(values - best, heat))


@triton.jit
def _keys(values):
    """Integers in the order of the values."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(key):
    """The value that has a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _below(total):
    """The greatest number less than a positive one."""
    return (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)


@triton.jit
def _whole_draw(
    source, line, VOCAB: tl.constexpr, counted, repetition, presence, frequency, best, heat, number,
    PROMPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In the order of tokens: the first at which the cumulative weight passes the number's share."""
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, VOCAB, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = _values(source, line, at, VOCAB, counted, repetition, presence, frequency, PROMPT)
        sums += _weights(values, best, heat).to(tl.float64)
    total = tl.sum(sums, 0)
    target = tl.minimum(number * total, _below(total))
    before = number * 0
    token = -1
    last = 0
    for start in range(0, VOCAB, BLOCK):
        if token < 0:
            at = start + tl.arange(0, BLOCK)
            values = _values(source, line, at, VOCAB, counted, repetition, presence, frequency, PROMPT)
            weights = _weights(values, best, heat).to(tl.float64)
            after = before + tl.sum(weights, 0)
            last = tl.maximum(last, tl.max(tl.where(weights > 0, at, 0), 0))
            if after > target:
                passed = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
                token = tl.min(tl.where(passed, at, VOCAB), 0)
                token = tl.where(token < VOCAB, token, last)
            before = after
    return tl.where(token < 0, last, token)


@triton.jit
def _cut_draw(
    source, line, found, places, VOCAB: tl.constexpr, counted, repetition, presence, frequency, best, heat, top_k,
    top_p, min_p, number, PROMPT: tl.constexpr, BLOCK: tl.constexpr, NARROW: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """In the order of logits, of what is kept."""
    low, total = _reach(
        source, line, VOCAB, counted, repetition, presence, frequency, best, heat, top_k, top_p, min_p,
        PROMPT, BLOCK, MANY,
    )  # fmt: skip
    size = 0
    for start in range(0, VOCAB, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = _values(source, line, at, VOCAB, counted, repetition, presence, frequency, PROMPT)
        chosen = (values >= low) & (at < VOCAB)
        many = tl.sum(chosen.to(tl.int32), 0)
        if many > 0:
            into = size + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(found + into, _keys(values), chosen)
            tl.store(places + into, at, chosen)
            size += many
    tl.debug_barrier()

    top = _keys(best)
    floor = _keys(low + 0.0).to(tl.int64) - 1
    end = top
    """The least key that is kept, and how many tokens of it are."""
    many = VOCAB
    if top_k < VOCAB:
        end, above, weight = _search(found, size, floor, top, top_k.to(tl.float64), 0.0, best, heat, True, True, NARROW)
        many = top_k - above.to(tl.int32)
        equal = _equal(found, size, end, NARROW)
        own = _weights(_value(end), best, heat).to(tl.float64)
        total = weight + tl.minimum(many, equal).to(tl.float64) * own
        floor = end.to(tl.int64) - 1
    else:
        end = (floor + 1).to(tl.int32)
    if top_p < 1:
        limit = top_p.to(tl.float64) * total
        if limit > 0:
            last, _, weight = _search(found, size, floor, top, limit, 0.0, best, heat, False, True, NARROW)
            own = _weights(_value(last), best, heat).to(tl.float64)
            within = tl.minimum(tl.ceil((limit - weight) / tl.maximum(own, 1e-300)), 2e9).to(tl.int32)
            within = tl.maximum(within, 1)
            many = tl.where(last > end, within, tl.minimum(many, within))
            end = last
        else:
            end = top
            many = 1
        floor = end.to(tl.int64) - 1
    equal = _equal(found, size, end, NARROW)
    many = tl.minimum(many, equal)
    own = _weights(_value(end), best, heat)
    _, weight = _above(found, size, end, min_p, best, heat, NARROW)
    total = weight + tl.where(own >= min_p, many.to(tl.float64) * own.to(tl.float64), 0.0)
    target = tl.minimum(number * total, _below(total))
    drawn, _, weight = _search(found, size, floor, top, target, min_p, best, heat, False, False, NARROW)
    own = _weights(_value(drawn), best, heat).to(tl.float64)
    nth = tl.minimum((target - weight) / tl.maximum(own, 1e-300), 2e9).to(tl.int32)
    equal = _equal(found, size, drawn, NARROW)
    nth = tl.minimum(nth, tl.where(drawn == end, many, equal) - 1)
    return _nth(found, places, size, drawn, tl.maximum(nth, 0), NARROW)


@triton.jit
def _reach(
    source, line, VOCAB: tl.constexpr, counted, repetition, presence, frequency, best, heat, top_k, top_p, min_p,
    PROMPT: tl.constexpr, BLOCK: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The least logit that a candidate needs, so that all that is kept is among them; and the weight of all tokens.

    A pass looks at three distances from the best, the next at three between the farthest that did not suffice and the
    nearest that did: until there are few candidates, or it is known that there are many.
    """
    near = 0.0
    far = float("inf")
    inside = 0
    size = VOCAB
    step = 4.0
    rounds = 0
    total = tl.sum(tl.zeros((BLOCK,), tl.float64), 0)
    while (rounds == 0) | ((rounds < 6) & (size > MANY) & (inside < MANY)):
        sums = tl.zeros((BLOCK,), tl.float64)
        many_1 = tl.zeros((BLOCK,), tl.int32)
        many_2 = tl.zeros((BLOCK,), tl.int32)
        many_3 = tl.zeros((BLOCK,), tl.int32)
        sums_1 = tl.zeros((BLOCK,), tl.float32)
        sums_2 = tl.zeros((BLOCK,), tl.float32)
        sums_3 = tl.zeros((BLOCK,), tl.float32)
        low_1 = best - (near + step) * heat
        low_2 = best - (near + 2 * step) * heat
        low_3 = best - (near + 3 * step) * heat
        for start in range(0, VOCAB, BLOCK):
            at = start + tl.arange(0, BLOCK)
            values = _values(source, line, at, VOCAB, counted, repetition, presence, frequency, PROMPT)
            weights = _weights(values, best, heat)
            sums += weights.to(tl.float64)
            many_1 += (values >= low_1).to(tl.int32)
            many_2 += (values >= low_2).to(tl.int32)
            many_3 += (values >= low_3).to(tl.int32)
            sums_1 += tl.where(values >= low_1, weights, 0.0)
            sums_2 += tl.where(values >= low_2, weights, 0.0)
            sums_3 += tl.where(values >= low_3, weights, 0.0)
        total = tl.sum(sums, 0)
        size_1, size_2, size_3 = tl.sum(many_1, 0), tl.sum(many_2, 0), tl.sum(many_3, 0)
        good_1 = _suffices(size_1, tl.sum(sums_1, 0), total, near + step, top_k, top_p, min_p, VOCAB)
        good_2 = _suffices(size_2, tl.sum(sums_2, 0), total, near + 2 * step, top_k, top_p, min_p, VOCAB)
        good_3 = _suffices(size_3, tl.sum(sums_3, 0), total, near + 3 * step, top_k, top_p, min_p, VOCAB)
        inside = tl.where(good_1, inside, tl.where(good_2, size_1, tl.where(good_3, size_2, size_3)))
        size = tl.where(good_1, size_1, tl.where(good_2, size_2, tl.where(good_3, size_3, size)))
        reach = near
        near = reach + step * tl.where(good_1, 0.0, tl.where(good_2, 1.0, tl.where(good_3, 2.0, 3.0)))
        far = tl.where(good_1 | good_2 | good_3, near + step, far)
        step = tl.where(far == float("inf"), near, (far - near) / 4)
        rounds += 1
    return best - far * heat, total


@triton.jit
def _suffices(many, weight, total, distance, top_k, top_p, min_p, VOCAB: tl.constexpr):
    """Whether so many tokens of so much weight, up to a distance from the best, are all that can be kept."""
    by_p = weight.to(tl.float64) >= top_p.to(tl.float64) * total * 1.0001
    by_min = min_p > 1.001 * tl.exp(-distance)
    return tl.where(top_k < VOCAB, (many >= top_k) | (by_min & (top_p >= 1)), by_p | by_min)


@triton.jit
def _search(
    found, size, low, high, bound, min_p, best, heat,
    COUNT: tl.constexpr, STRICT: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """The least key above `low` over which there is less than `bound` (or no more), of tokens or of weight.

    Answers how many tokens and how much weight, too. `high` is known to be such a key.
    """
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    while high - low > 1:
        parts = (high - low) * (tl.arange(0, 8) + 1) // 9
        looked = low + tl.maximum(parts, 1)
        sums = tl.zeros((8, NARROW), tl.float64)
        start = 0
        while start < size:
            at = start + tl.arange(0, NARROW)
            keys = tl.load(found + at, at < size, other=-2147483648)
            if COUNT:
                worth = tl.full((NARROW,), 1.0, tl.float64)
            else:
                weights = _weights(_value(keys), best, heat)
                worth = tl.where((at < size) & (weights >= min_p), weights, 0.0).to(tl.float64)
            sums += tl.where(keys[None, :] > looked.to(tl.int32)[:, None], worth[None, :], 0.0)
            start += NARROW
        over = tl.sum(sums, 1)
        good = (over < bound) if STRICT else (over <= bound)
        high = tl.minimum(high, tl.min(tl.where(good, looked, high), 0))
        low = tl.maximum(low, tl.max(tl.where(good, low, looked), 0))
    key = high.to(tl.int32)
    many, weight = _above(found, size, key, min_p, best, heat, NARROW)
    return key, many, weight


@triton.jit
def _above(found, size, key, min_p, best, heat, NARROW: tl.constexpr):
    """How many candidates lie above a key, and the weight of those that min-p leaves."""
    many = tl.zeros((NARROW,), tl.int32)
    sums = tl.zeros((NARROW,), tl.float64)
    start = 0
    while start < size:
        at = start + tl.arange(0, NARROW)
        keys = tl.load(found + at, at < size, other=-2147483648)
        over = (keys > key) & (at < size)
        weights = _weights(_value(keys), best, heat)
        many += over.to(tl.int32)
        sums += tl.where(over & (weights >= min_p), weights, 0.0).to(tl.float64)
        start += NARROW
    return tl.sum(many, 0), tl.sum(sums, 0)


@triton.jit
def _equal(found, size, key, NARROW: tl.constexpr):
    """How many candidates have a key."""
    many = tl.zeros((NARROW,), tl.int32)
    start = 0
    while start < size:
        at = start + tl.arange(0, NARROW)
        keys = tl.load(found + at, at < size, other=-2147483648)
        many += ((keys == key) & (at < size)).to(tl.int32)
        start += NARROW
    return tl.sum(many, 0)


@triton.jit
def _nth(found, places, size, key, nth, NARROW: tl.constexpr):
    """The token that is number `nth` of those that have a key, in the order of tokens."""
    before = 0
    token = 2147483647
    start = 0
    while start < size:
        at = start + tl.arange(0, NARROW)
        keys = tl.load(found + at, at < size, other=-2147483648)
        has = (keys == key) & (at < size)
        order = before + tl.cumsum(has.to(tl.int32), 0) - 1
        tokens = tl.load(places + at, at < size, other=2147483647)
        token = tl.minimum(token, tl.min(tl.where(has & (order == nth), tokens, 2147483647), 0))
        before += tl.sum(has.to(tl.int32), 0)
        start += NARROW
    return token
