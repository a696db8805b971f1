"""Sizes that nobody waits for: room for all rows that could come, of which the first are filled."""

import pytest
import torch

from stepwell import PeerLost, Traffic
from stepwell_deepep.config import ElasticConfig
from stepwell_deepep.elastic import DeepEPV2
from stepwell_testkit.together import at_once

RANKS, OWN, HIDDEN = 2, 4, 32


def batch(rank, count):
    dice = torch.Generator().manual_seed(rank)
    tokens = torch.randn(count, HIDDEN, generator=dice).bfloat16()
    experts = torch.rand(count, RANKS * OWN, generator=dice).argsort(1)[:, :2].t().contiguous().t()
    return tokens, experts, torch.rand(count, 2, generator=dice)


def exchange(dispatcher, rank, count):
    tokens, experts, weights = batch(rank, count)
    got = dispatcher.dispatch_finish(dispatcher.dispatch_start(tokens, experts, weights))
    filled = int(got.counts.sum())
    expert = torch.repeat_interleave(torch.arange(OWN), got.counts.long()) + rank * OWN
    outputs = torch.full_like(got.tokens, float("nan"))
    outputs[:filled] = got.tokens[:filled] * (expert + 1)[:, None]
    sums = dispatcher.combine_finish(dispatcher.combine_start(outputs, got))
    return got, sums, (tokens * (weights * (experts + 1)).sum(1, keepdim=True))


def exchanged(dispatchers, counts):
    return at_once(lambda rank: exchange(dispatchers[rank], rank, counts[rank]), RANKS, 30)


def test_rows_beyond_the_counts_are_anything_and_no_size_is_told(over):
    dispatchers = over(DeepEPV2, ElasticConfig(sizes="bound", capacity=8), ranks=RANKS)
    at_once(lambda rank: dispatchers[rank].open(Traffic(RANKS * OWN, 2, HIDDEN, "bfloat16", 24)), RANKS, 30)
    assert dispatchers[0].capacity == 8
    for counts in ((8, 3), (0, 5), (0, 0)):
        for got, sums, right in exchanged(dispatchers, counts):
            assert got.rows is None and got.tokens.shape == (RANKS * 8 * 2, HIDDEN)
            assert sums.shape == right.shape
            torch.testing.assert_close(sums.float(), right.float(), atol=0.05, rtol=0.02)


def test_a_loss_is_told_where_the_device_tells_it(over, double):
    dispatchers = over(DeepEPV2, ElasticConfig(sizes="bound", capacity=8), ranks=RANKS)
    at_once(lambda rank: dispatchers[rank].open(Traffic(RANKS * OWN, 2, HIDDEN, "bfloat16", 24)), RANKS, 30)
    double.wired.wires["deepep-v2"].patience_s = 0.2
    handle = dispatchers[0].dispatch_start(*batch(0, 2))
    with pytest.raises(PeerLost, match="unspecified launch failure"):
        dispatchers[0].dispatch_finish(handle)
    with pytest.raises(PeerLost):
        dispatchers[0].dispatch_start(*batch(0, 2))
