"""Floors, operations and shares, by values that are known otherwise."""

import json

import pytest

from stepwell import Chunked, Full, GroupSpec, Window
from stepwell.models import read_shape
from stepwell_transformers.bench.arithmetic import (
    Overlap,
    Weights,
    decode_bytes,
    floor_s,
    hit_bound,
    kv_read,
    prefill_flops,
    seen,
)
from stepwell_transformers.bench.weigh import weigh
from stepwell_transformers.random_weights import SHAPES

LLAMA = Weights(525_336_576, 525_336_576, 0, 6_979_588_096)


def shape(name):
    return read_shape(json.loads((SHAPES / name / "config.json").read_text()))


def test_llama_8b_reads_15_gb_of_weights_a_step_and_131072_bytes_a_token():
    assert weigh(SHAPES / "llama-3.1-8b", 2) == LLAMA
    assert LLAMA.read(1) == LLAMA.read(64) == 15_009_849_344
    groups = shape("llama-3.1-8b").groups()
    assert kv_read(groups, 1) == 131_072
    assert decode_bytes(LLAMA, groups, 8, 2048) == 15_009_849_344 + 8 * 2048 * 131_072
    assert floor_s(decode_bytes(LLAMA, groups, 1, 2048), 4.24e12) == pytest.approx(3.603e-3, rel=1e-3)


def test_a_tied_embedding_is_read_as_the_head():
    weights = weigh(SHAPES / "gemma-3-12b", 2)
    assert weights.embedding == weights.head == 262208 * 3840
    assert weights.head + weights.rest == 11_766_034_176


def test_experts_are_read_where_tokens_go():
    weights = Weights(0, 100, 3200, 50, count=32, each=4)
    assert weights.read(1) == pytest.approx(2 * (150 + 400))
    assert weights.read(2) == pytest.approx(2 * (150 + 3200 * (1 - (7 / 8) ** 2)))
    assert weights.read(10_000) == pytest.approx(2 * 3350)
    assert weights.active == 50 + 400
    oss = weigh(SHAPES / "gpt-oss-20b", 2)
    assert (oss.count, oss.each) == (32, 4)
    assert oss.active + oss.head + oss.embedding == pytest.approx(
        4.19e9, rel=0.01
    )  # 3.6e9 are told without an embedding


def test_a_window_reads_no_more_than_its_tokens():
    groups = [GroupSpec("full", Full(), 10, (0,)), GroupSpec("window", Window(127), 10, (1,))]
    assert kv_read(groups, 100) == 2000
    assert kv_read(groups, 1000) == 10_000 + 1270


def test_what_tokens_see():
    assert seen(Full(), 0, 4) == 1 + 2 + 3 + 4
    assert seen(Full(), 2, 2) == 3 + 4
    assert seen(Window(1), 0, 4) == 1 + 2 + 2 + 2
    assert seen(Chunked(2), 0, 4) == 1 + 2 + 1 + 2


def test_operations_of_an_8k_prompt():
    llama = shape("llama-3.1-8b")
    products = 2 * 6_979_588_096 * 8192
    pairs = 8192 * 8193 // 2
    attention = 32 * 4 * 32 * 128 * pairs
    assert prefill_flops(LLAMA, llama, 32, 0, 8192) == products + attention + 2 * 525_336_576
    halves = prefill_flops(LLAMA, llama, 32, 0, 4096) + prefill_flops(LLAMA, llama, 32, 4096, 4096)
    assert halves == prefill_flops(LLAMA, llama, 32, 0, 8192) + 2 * 525_336_576


@pytest.mark.parametrize(
    ("together", "compute", "copy", "bound", "share", "good"),
    [
        (1.05, 1.0, 0.6, "compute", 0.05 / 0.6, True),
        (1.07, 1.0, 0.6, "compute", 0.07 / 0.6, False),
        (0.99, 1.0, 0.6, "compute", 0.0, True),
        (1.08, 0.5, 1.0, "copy", 0.58, True),
        (1.12, 0.5, 1.0, "copy", 0.62, False),
    ],
)
def test_overlap(together, compute, copy, bound, share, good):
    one = Overlap(together, compute, copy)
    assert (one.bound, one.good) == (bound, good)
    assert one.share == pytest.approx(share)
    assert one.over == pytest.approx(together / max(compute, copy) - 1)


def test_a_hit_cannot_be_sooner_than_its_copy_or_its_rest():
    assert hit_bound(1.0, 0.01, 0.1) == pytest.approx(10)
    assert hit_bound(1.0, 0.2, 0.1) == pytest.approx(5)


def test_shares_of_a_row_and_the_higher_of_two_ceilings():
    from stepwell_transformers.bench.ceilings import Ceilings
    from stepwell_transformers.bench.decode import against_floor

    row = {"batch": 8, "ms": 5.0, "tokens_s": 1280.0, "bytes": 16_000_000_000}
    assert against_floor(row, 4e12) == {"floor_ms": 4.0, "share": 0.8, "share_of_mean": 0.64}
    low, high = Ceilings(4e12, 7e14, 5e10, 6e10), Ceilings(4.2e12, 6e14, 5e10, 6e10)
    assert low.best(high) == high.best(low) == Ceilings(4.2e12, 7e14, 5e10, 6e10)
    assert low.best(None) is low
    assert low.figures() == {"copy_tb_s": 4.0, "matrix_tflop_s": 700.0, "h2d_gb_s": 50.0, "d2h_gb_s": 60.0}
