"""The sampler of a device draws what the reference draws, though the host knows none of the tokens."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Sampling
from stepwell_transformers.drawing import Drawer, greedy
from stepwell_transformers.drawing.counts import FIRST
from stepwell_transformers.sampling import Draw, sample

from .drawn_alike import Pair

CPU = torch.device("cpu")
HOT = Sampling(temperature=1.0, top_p=0.9, seed=5)


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), vocab=st.sampled_from([2, 17, 300, 2500]))
def test_draws_are_the_reference_s_though_the_host_has_seen_no_token(seed, rows, vocab):
    pair = Pair(CPU, "torch", rows, vocab, seed)
    assert pair.compare(pair.steps(4))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_request_that_was_retracted_goes_on_as_it_would_have(seed):
    pair = Pair(CPU, "torch", 3, 300, seed)
    pair.compare(pair.steps(3))
    for row in range(3):
        pair.drawer.close(pair.slots[row])
    pair.slots = [3, *pair.slots[:2]]
    for row in range(3):
        pair.open(row)
    pair.compare(pair.steps(4))


def test_the_kernel_draws_the_same_in_triton_s_interpreter():
    pytest.importorskip("triton")
    program = Path(__file__).with_name("drawn_alike.py")
    run = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "draws equal" in run.stdout


def test_plain_rows_cost_an_argmax_and_are_known_to_be_plain():
    drawer = Drawer(CPU, 4, 50)
    drawer.open(0, Sampling(), ids(1, 2), 0)
    drawer.open(1, Sampling(top_p=0.5, top_k=3), ids(1, 2), 0)
    drawer.open(2, Sampling(logprobs=0), ids(1, 2), 0)
    drawer.open(3, Sampling(presence_penalty=0.1), ids(1, 2), 0)
    assert drawer.plain([0, 1])
    assert not drawer.plain([0, 2])
    assert not drawer.plain([3])
    logits = torch.randn(2, 50)
    assert torch.equal(drawer.draw(logits, [1, 0], [2, 2]).tokens, greedy(logits))


def test_what_one_slot_had_is_not_held_against_the_next():
    drawer = Drawer(CPU, 1, 10)
    logits = torch.zeros(1, 10)
    logits[0, 4] = 1.0
    stern = Sampling(frequency_penalty=5.0)
    drawer.open(0, stern, ids(1), 0)
    assert drawer.draw(logits, [0], [1]).read() == [4]
    assert drawer.draw(logits, [0], [2]).read() != [4]
    drawer.close(0)
    drawer.open(0, stern, ids(1), 0)
    assert drawer.draw(logits, [0], [1]).read() == [4]
    drawer.close(0)
    drawer.open(0, Sampling(), ids(4, 4), 1)
    assert drawer.draw(logits, [0], [2]).read() == [4]
    drawer.close(0)


def test_what_was_prepared_with_leaves_nothing_behind():
    drawer = Drawer(CPU, 1, 10)
    drawer.prepare(torch.bfloat16)
    logits = torch.zeros(1, 10)
    logits[0, 0] = 1.0
    drawer.open(0, Sampling(presence_penalty=9.0), ids(3), 0)
    assert drawer.draw(logits, [0], [1]).read() == [0]


def test_counts_grow_with_those_who_need_them_and_keep_what_they_counted():
    rows = 3 * FIRST
    drawer = Drawer(CPU, rows, 20)
    logits = torch.zeros(1, 20)
    logits[0, 7] = 1.0
    for slot in range(rows):
        drawer.open(slot, Sampling(presence_penalty=3.0), ids(3), 0)
        assert drawer.draw(logits, [slot], [1]).read() == [7]
    again = drawer.draw(logits.expand(rows, -1), list(range(rows)), [2] * rows).read()
    assert 7 not in again


def test_slots_without_a_seed_draw_differently():
    drawer = Drawer(CPU, 2, 5000)
    for slot in range(2):
        drawer.open(slot, Sampling(temperature=1.0), ids(1), 0)
    draws = [drawer.draw(torch.zeros(2, 5000), [0, 1], [n, n]).read() for n in range(1, 9)]
    assert any(a != b for a, b in draws)


def test_numbers_beyond_the_vocabulary_are_all_of_it():
    drawer = Drawer(CPU, 1, 5)
    drawer.open(0, Sampling(temperature=1.0, top_k=2**70, logprobs=2**70, seed=2**63), ids(1, 2), 0)
    drawn = drawer.draw(torch.arange(5.0)[None], [0], [2])
    (odds,) = drawn.logprobs()
    assert [token for token, _ in odds.top] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, logprobs=2),
        Sampling(temperature=1e-30, presence_penalty=2.0),
        Sampling(temperature=1.0, top_k=10**6, top_p=0.5, min_p=1.0),
    ],
)
@pytest.mark.parametrize("vocab", [1, 3, 2500])
def test_logits_that_are_no_numbers_become_no_token_that_there_is_not(bad, sampling, vocab):
    logits = torch.zeros((2, vocab))
    logits[0], logits[1, -1] = bad, bad
    history = np.zeros(3, np.int32)
    drawer = Drawer(CPU, 2, vocab)
    for slot in range(2):
        drawer.open(slot, sampling, history.tobytes(), 1)
    drawn = drawer.draw(logits, [0, 1], [3, 3]).read()
    found, _ = sample(logits, [Draw(sampling, 5, 1, history, 2)] * 2)
    assert all(0 <= token < vocab for token in (*drawn, *found))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("how", ["triton", "torch"])
def test_nothing_synchronises_and_draws_are_the_same_on_a_gpu(how):
    for seed in range(6):
        pair = Pair(torch.device("cuda"), how, 6, 5000, seed)
        pair.logits = lambda rows: torch.randn(len(rows), 5000, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            done = pair.steps(5)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        pair.compare(done)
