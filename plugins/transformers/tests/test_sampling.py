"""Sampling against a plain numpy reference, and against the warpers of transformers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stepwell import Sampling
from stepwell_transformers.sampling import CANDIDATES, Draw, penalise, pick, sample, uniform

VOCAB = 3 * CANDIDATES


def draw(sampling, seed=1, generated=0, history=(), prompt=0):
    return Draw(sampling, seed, generated, history, prompt)


def reference(logits, sampling, number):
    """The token that a number draws, one row, in float64; and how near the number is to another token's."""
    scaled = np.asarray(logits, np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    cuts = sampling.top_k or sampling.top_p < 1 or sampling.min_p
    order = np.argsort(-probs, kind="stable") if cuts else np.arange(len(probs))
    kept = probs[order].copy()
    if sampling.top_k:
        kept[sampling.top_k :] = 0
    if sampling.top_p < 1:
        share = kept / kept.sum()
        before = np.cumsum(share) - share
        kept[(before >= sampling.top_p) & (np.arange(len(kept)) > 0)] = 0
    if sampling.min_p:
        kept[kept < sampling.min_p * probs.max()] = 0
    cumulative = np.cumsum(kept / kept.sum())
    place = int(np.searchsorted(cumulative, number, side="right"))
    return int(order[place]), float(np.abs(cumulative - number).min()), set(order[kept > 0].tolist())


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 1.7, 30.0]),
    top_k=st.sampled_from([0, 1, 5, 200, CANDIDATES + 1, VOCAB, 10 * VOCAB]),
    top_p=st.sampled_from([0.0, 0.1, 0.6, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(samplings, min_size=1, max_size=4), seed=st.integers(0, 2**64 - 1), spread=st.sampled_from([1, 5]))
def test_draws_equal_the_reference_whatever_else_is_in_the_batch(rows, seed, spread):
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed % 2**32)) * spread
    tokens, _ = sample(logits, [draw(row, seed, i) for i, row in enumerate(rows)])
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        want, near, kept = reference(logits[i].numpy(), row, uniform(seed, i))
        assert token == want or (near < 1e-6 and token in kept)
        assert sample(logits[i : i + 1], [draw(row, seed, i)])[0] == [token]


@settings(max_examples=60, deadline=None)
@given(row=samplings, seed=st.integers(0, 2**32 - 1))
def test_what_may_be_drawn_is_what_transformers_keeps(row, seed):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(row.temperature)])
    if row.top_k:
        warpers.append(TopKLogitsWarper(row.top_k))
    if 0 < row.top_p < 1:
        warpers.append(TopPLogitsWarper(row.top_p))
    if row.min_p:
        warpers.append(MinPLogitsWarper(row.min_p))
    if row.top_p == 0:
        return
    keeps = warpers(torch.zeros(1, 1, dtype=torch.int64), logits)
    _, _, kept = reference(logits[0].numpy(), row, 0.5)
    theirs = set(torch.nonzero(keeps[0] > float("-inf"))[:, 0].tolist())
    assert len(theirs ^ kept) <= 1  # float32 and float64 may differ about the last token of top-p


def test_draws_follow_the_probabilities():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    hot = Sampling(temperature=1.0)
    tokens, _ = sample(logits.expand(20_000, -1), [draw(hot, 9, i) for i in range(20_000)])
    assert np.bincount(tokens, minlength=4) / 20_000 == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.012)
    top = Sampling(temperature=1.0, top_p=0.75)
    tokens, _ = sample(logits.expand(20_000, -1), [draw(top, 9, i) for i in range(20_000)])
    assert np.bincount(tokens, minlength=4) / 20_000 == pytest.approx([0.625, 0.375, 0, 0], abs=0.012)


def test_greedy_takes_the_best_and_no_temperature_is_too_small():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(3)) * 4  # without ties in bfloat16
    best = logits.argmax(-1).tolist()
    assert sample(logits, [draw(Sampling())] * 4)[0] == best
    assert sample(logits, [draw(Sampling(temperature=1e-30, top_p=0.9))] * 4)[0] == best
    assert (
        sample(logits.bfloat16(), [draw(Sampling(temperature=1.0, top_k=1))] * 4)[0]
        == logits.bfloat16().argmax(-1).tolist()
    )


def test_what_has_no_probability_is_never_drawn():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    numbers = torch.tensor([0.0, 0.49999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert pick(weights.expand(4, -1), numbers).tolist() == [1, 1, 3, 3]
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 7] = 1.0
    assert sample(logits, [draw(Sampling(temperature=1.0))])[0] == [7]


def test_numbers_are_even_and_depend_on_seed_and_position_alone():
    numbers = np.array([[uniform(seed, place) for place in range(100)] for seed in range(100)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.histogram(numbers, 10, (0, 1))[0] == pytest.approx([1000] * 10, abs=150)
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.05
    assert len(np.unique(numbers)) == numbers.size
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_repetition_penalty_is_that_of_transformers():
    logits = torch.randn(1, 50)
    history = [3, 9, 9, 41, 3]
    want = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([history]), logits.clone())
    got = penalise(logits[0], draw(Sampling(repetition_penalty=1.3), history=history, prompt=5))
    torch.testing.assert_close(got, want[0])


def test_presence_and_frequency_count_the_answer_alone():
    logits, history = torch.zeros(10), [1, 1, 2, 5, 2, 2]
    row = draw(Sampling(presence_penalty=0.5, frequency_penalty=0.25), history=history, prompt=3)
    want = torch.zeros(10)
    want[5], want[2] = -0.75, -1.0
    assert torch.equal(penalise(logits, row), want)
    assert torch.equal(logits, torch.zeros(10))


def test_penalties_of_one_row_leave_the_others_alone():
    logits = torch.randn(3, 100)
    logits[:, 4] = 9
    rows = [draw(Sampling()), draw(Sampling(frequency_penalty=2.0), history=[4] * 9, prompt=0), draw(Sampling())]
    tokens, _ = sample(logits, rows)
    assert tokens[0] == tokens[2] == 4
    assert tokens[1] != 4


def test_logprobs_are_taken_before_penalties_and_temperature():
    logits = torch.randn(2, 100)
    logits[1, 6] = 20
    hot = Sampling(temperature=0.5, frequency_penalty=2.0, logprobs=2)
    tokens, found = sample(logits, [draw(Sampling(logprobs=0)), draw(hot, history=[6], prompt=0)])
    want = torch.log_softmax(logits, -1)
    assert found[0].top == ()
    assert found[0].logprob == pytest.approx(float(want[0, tokens[0]]), abs=1e-5)
    assert [token for token, _ in found[1].top] == want[1].topk(2).indices.tolist()
    assert sample(logits, [draw(Sampling())] * 2)[1] == [None, None]
