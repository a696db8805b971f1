"""What the kit does not ask: 8-bit tokens, other numbers of ranks, replays, and memory that somebody still reads."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from stepwell import Format, PeerLost, Traffic
from stepwell_testkit.together import at_once

pytest.importorskip("triton")
from stepwell_symm.config import SymmConfig, SymmLowConfig
from stepwell_symm.low import SymmLow
from stepwell_symm.normal import Symm

HIDDEN, EXPERTS, TOP = 128, 6, 2
FEW = partial(SymmConfig, programs=2)  # each takes the interpreter its time
BOTH = pytest.mark.parametrize(("offer", "config"), [(Symm, FEW), (SymmLow, SymmLowConfig)])


def traffic(dtype="float32", most=4):
    return Traffic(EXPERTS, TOP, HIDDEN, dtype, most)


class Brought:
    """What a rank brings; expert e multiplies by e + 1."""

    def __init__(self, rank, count, seed=0):
        dice = torch.Generator().manual_seed(100 * seed + rank)
        self.tokens = torch.randn(count, HIDDEN, generator=dice)
        chosen = [torch.randperm(EXPERTS, generator=dice)[:TOP] for _ in range(count)]
        self.experts = torch.stack(chosen) if chosen else torch.empty(0, TOP, dtype=torch.int64)
        self.weights = torch.rand(count, TOP, generator=dice)

    @property
    def given(self):
        return self.tokens, self.experts, self.weights

    @property
    def sums(self):
        return self.tokens.float() * ((self.experts + 1) * self.weights).sum(1, keepdim=True)


def answered(dispatcher, got, rank, ranks):
    """What the experts of a rank make of what came."""
    own = EXPERTS // ranks
    tokens = got.tokens.float()
    if got.scales is not None:
        tokens = (tokens.unflatten(-1, (-1, 128)) * got.scales[..., None]).flatten(-2)
    if dispatcher.format is Format.MASKED:
        return tokens * (torch.arange(own) + 1 + rank * own)[:, None, None]
    return tokens * torch.where(got.experts >= 0, (got.experts + 1 + rank * own) * got.weights, 0).sum(1, keepdim=True)


def exchanged(dispatchers, brought):
    """The sums of all ranks."""

    def work(rank):
        dispatcher, dtype = dispatchers[rank], brought[rank].tokens.dtype
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*brought[rank].given))
        outputs = answered(dispatcher, got, rank, len(dispatchers)).to(dtype)
        return dispatcher.combine_finish(dispatcher.combine_start(outputs, got))

    return at_once(work, len(dispatchers), 120)


@BOTH
@pytest.mark.parametrize("dtype", ["same", "fp8"])
def test_bfloat16_comes_back_whichever_way_it_went(spread, offer, config, dtype):
    """Numbers that 8-bit floats have, too: the interpreter rounds some of the others to half of what they are."""
    dispatchers = spread(offer, config(dtype), 2, traffic("bfloat16"))
    brought = [Brought(rank, 4 - rank) for rank in range(2)]
    for each in brought:
        each.tokens = ((100 * each.tokens).to(torch.float8_e4m3fn).float() / 64).bfloat16()
        each.tokens[:, 5] = 448 / 64
    for rank, sums in enumerate(exchanged(dispatchers, brought)):
        assert sums.dtype == torch.bfloat16
        assert (sums.float() - brought[rank].sums).abs().max() < 0.02 * brought[rank].sums.abs().max()


@BOTH
@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks_that_experts_spread_over(spread, offer, config, ranks):
    dispatchers = spread(offer, config(), ranks, traffic())
    for seed in range(3):
        brought = [Brought(rank, (seed + rank) % 4, seed=seed) for rank in range(ranks)]
        for rank, sums in enumerate(exchanged(dispatchers, brought)):
            torch.testing.assert_close(sums, brought[rank].sums)


def test_a_token_crosses_once_to_a_rank(spread):
    dispatchers = spread(Symm, FEW(), 2, traffic())
    brought = [Brought(rank, 4) for rank in range(2)]
    for each in brought:
        each.experts[:] = torch.tensor([3, 5])  # both with rank 1

    def rows(rank):
        return dispatchers[rank].dispatch_finish(dispatchers[rank].dispatch_start(*brought[rank].given))

    nothing, all_of_them = at_once(rows, 2, 60)
    assert nothing.tokens.shape == (0, HIDDEN) and nothing.rows == (0, 0, 0)
    assert torch.equal(all_of_them.tokens, torch.cat([each.tokens for each in brought]))
    assert all_of_them.rows == (8, 0, 8)
    assert all_of_them.experts.tolist() == [[0, 2]] * 8


def test_small_batches_replay_as_they_were_captured(spread):
    """Four kernels, no word to the host; launched again they take what the tensors hold then, and go on counting."""
    dispatchers = spread(SymmLow, SymmLowConfig(), 2, traffic())
    brought = [Brought(rank, 3) for rank in range(2)]
    kept = [dispatcher._lane.launches for dispatcher in dispatchers]
    for launches in kept:
        launches.clear()
    arrived = {}

    def work(rank):
        dispatcher = dispatchers[rank]
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*brought[rank].given))
        arrived[rank] = got, torch.empty_like(got.tokens)
        arrived[rank][1].copy_(answered(dispatcher, got, rank, 2))
        return dispatcher.combine_finish(dispatcher.combine_start(arrived[rank][1], got))

    sums = at_once(work, 2, 60)
    assert [kernel.fn.__name__ for kernel, *_ in kept[0]] == [
        "low_send_kernel",
        "spread_kernel",
        "reduce_kernel",
        "gather_kernel",
    ]
    for seed in (1, 2):
        fresh = [Brought(rank, 3, seed=seed) for rank in range(2)]
        for old, new in zip(brought, fresh, strict=True):
            for held, tensor in zip(old.given, new.given, strict=True):
                held.copy_(tensor)
        for step in range(4):
            for rank in range(2):
                if step == 2:
                    got, outputs = arrived[rank]
                    outputs.copy_(answered(dispatchers[rank], got, rank, 2))
                kernel, programs, args, meta = kept[rank][step]
                kernel[(programs,)](*args, **meta)
        for rank in range(2):
            torch.testing.assert_close(sums[rank], fresh[rank].sums)


@BOTH
def test_what_another_rank_still_reads_is_not_written_over(spread, offer, config):
    """A rank that is far ahead waits for the slow one, gives it up in time, and leaves its memory alone."""
    dispatchers = spread(offer, config(in_flight=1), 2, traffic())
    brought = [Brought(rank, 4) for rank in range(2)]
    slow = {}

    def work(rank):
        dispatcher = dispatchers[rank]
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*brought[rank].given))
        handle = dispatcher.combine_start(answered(dispatcher, got, rank, 2), got)
        if rank == 0:
            dispatcher.combine_finish(handle)
        else:
            slow["shared"] = dispatcher._shared.own

    at_once(work, 2, 60)
    before = slow["shared"].clone()
    with pytest.raises(PeerLost):
        dispatchers[0].dispatch_finish(dispatchers[0].dispatch_start(*Brought(0, 4, seed=9).given))
    assert torch.equal(slow["shared"], before)


@BOTH
def test_a_sum_that_a_lost_rank_owes_is_no_number(spread, offer, config, monkeypatch):
    dispatchers = spread(offer, config(), 2, traffic())
    brought = [Brought(rank, 4) for rank in range(2)]
    for each in brought:
        each.experts[:] = torch.tensor([[0, 1], [0, 3], [4, 5], [1, 2]])

    def work(rank):
        dispatcher = dispatchers[rank]
        got = dispatcher.dispatch_finish(dispatcher.dispatch_start(*brought[rank].given))
        return None if rank else dispatcher.combine_start(answered(dispatcher, got, rank, 2), got)

    handle, _ = at_once(work, 2, 60)
    monkeypatch.setattr(type(dispatchers[0]._desks), "given_up", False)  # as long as the device has not come there yet
    sums = dispatchers[0].combine_finish(handle)
    assert sums.isnan().all(1).tolist() == [False, True, True, False]
    torch.testing.assert_close(sums[[0, 3]], brought[0].sums[[0, 3]])


@BOTH
def test_a_batch_takes_each_step_once(spread, offer, config):
    (dispatcher,) = spread(offer, config(), 1, traffic())
    handle = dispatcher.dispatch_start(*Brought(0, 2).given)
    with pytest.raises(RuntimeError, match="sent cannot be one that has ended"):
        dispatcher.combine_finish(handle)
    dispatcher.dispatch_finish(handle)
    with pytest.raises(RuntimeError, match="arrived"):
        dispatcher.dispatch_finish(handle)
