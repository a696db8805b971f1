"""Sampling against a plain reference, row by row in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Sampling
from stepwell_transformers.sampling import Draw, sample, uniform

VOCAB = 40


def allowed(logits, sampling):
    """Probabilities that are left after temperature and cuts."""
    values = logits.astype(np.float64) / sampling.temperature
    probs = np.exp(values - values.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    keep = np.ones(VOCAB, bool)
    if sampling.top_k:
        keep[order[sampling.top_k :]] = False
    keep &= probs >= sampling.min_p * probs.max() * (1 - 1e-6)
    rest = np.where(keep, probs, 0)
    rest /= rest.sum()
    before = np.cumsum(rest[order]) - rest[order]
    cut = order[(before >= sampling.top_p + 1e-6) & (np.arange(VOCAB) > 0)]
    rest[cut] = 0
    return rest / rest.sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 100]),
    top_p=st.sampled_from([0.1, 0.7, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_a_draw_is_one_that_the_cuts_leave(seed, temperature, top_k, top_p, min_p):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (4, VOCAB)).astype(np.float32))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    draws = [Draw(sampling, seed + i, i, [], 0) for i in range(4)]
    tokens, _ = sample(logits, draws)
    for row, token in zip(logits.numpy(), tokens, strict=True):
        assert allowed(row, sampling)[token] > 0


def test_draws_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(4000, 1)
    sampling = Sampling(temperature=1.0)
    tokens, _ = sample(logits, [Draw(sampling, 7, i, [], 0) for i in range(4000)])
    shares = np.bincount(tokens, minlength=4) / 4000
    assert np.abs(shares - torch.softmax(logits[0], 0).numpy()).max() < 0.03


def test_a_draw_depends_on_seed_and_position_alone():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    sampling = Sampling(temperature=1.5)
    alone = [sample(logits, [Draw(sampling, 3, i, [], 0)])[0][0] for i in range(20)]
    together, _ = sample(logits.repeat(20, 1), [Draw(sampling, 3, i, [], 0) for i in range(20)])
    assert alone == together
    assert len({uniform(3, i) for i in range(100)}) == 100
    assert uniform(3, 5) == uniform(3, 5) != uniform(4, 5)


def test_greedy_and_drawn_rows_mix():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    draws = [
        Draw(Sampling(), 0, 0, [], 0),
        Draw(Sampling(temperature=1.0, seed=1), 1, 0, [], 0),
        Draw(Sampling(), 0, 0, [], 0),
    ]
    tokens, logprobs = sample(logits, draws)
    assert tokens[0] == int(logits[0].argmax()) and tokens[2] == int(logits[2].argmax())
    assert logprobs == [None, None, None]


@pytest.mark.parametrize(
    ("sampling", "change"),
    [
        (Sampling(repetition_penalty=2.0), lambda x, n, answer: x / 2 if x > 0 else x * 2),
        (Sampling(presence_penalty=1.5), lambda x, n, answer: x - 1.5 if n else x),
        (Sampling(frequency_penalty=0.5), lambda x, n, answer: x - 0.5 * n),
    ],
)
def test_penalties(sampling, change):
    history, prompt = [4, 9, 4, 7, 7, 7], 2
    base = torch.linspace(-1, 1, VOCAB)[None]
    for token in (4, 7, 9):
        times = history[prompt:].count(token)
        want = change(float(base[0, token]), times, True)
        row = base.clone()
        row[0, :] = torch.where(torch.arange(VOCAB) == token, row[0], torch.tensor(want - 1e-3))
        assert sample(row, [Draw(sampling, 0, 4, history, prompt)])[0] == [token]


def test_logprobs_are_the_models_own():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    sampling = Sampling(temperature=0.7, top_k=3, logprobs=4, frequency_penalty=1.0)
    tokens, (logprob,) = sample(logits, [Draw(sampling, 5, 1, [3], 0)])
    want = torch.log_softmax(logits[0], 0)
    assert logprob.logprob == pytest.approx(float(want[tokens[0]]), abs=1e-5)
    assert [token for token, _ in logprob.top] == want.topk(4).indices.tolist()
