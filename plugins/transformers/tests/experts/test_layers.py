"""One layer's experts: shares of any length, rounds, padding, counts, replicas, and other batches meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stepwell import Capability, ConfigError, Format
from stepwell_kernels.collective import Solo, thread_groups
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.experts import ExpertsSettings, Told

from .layers import HIDDEN, Layer, batch, check, wanted


@pytest.fixture
def layer(asked_for: Any, table: Any) -> Callable[..., Layer]:
    """Of ranks that have tokens of their own."""

    def make(size: int, count: int = 8, top_k: int = 2, *, alike: bool = False, **more: Any) -> Layer:
        groups = thread_groups(size) if alike else [Solo()] * size
        return Layer(asked_for, table, groups, count, top_k, **more)

    return make


@pytest.mark.parametrize("format", list(Format))
def test_b114_ranks_without_tokens_take_part(layer: Any, format: Format) -> None:
    spread = layer(4, format=format)
    for experts in spread.experts:
        experts.record()
    batches = [batch(count, seed=count) for count in (5, 0, 3, 0)]
    got = spread.run(batches, most=5)
    check(got, batches)
    assert got[1].shape == got[3].shape == (0, HIDDEN)
    loads = sum(experts.drain_counts()[0] for experts in spread.experts)
    want = torch.bincount(torch.cat([experts.flatten() for _, experts, _ in batches]), minlength=8)
    assert torch.equal(loads, want), "what has no tokens is no load"
    nobody = [batch(0)] * 4
    check(spread.run(nobody, most=0), nobody)


def test_b114_a_group_without_a_step_joins_that_of_others(layer: Any) -> None:
    spread = layer(4, capacity=2)
    batches = [batch(count, seed=count) for count in (5, 0, 3, 0)]

    def go(rank: int) -> torch.Tensor | None:
        experts, (tokens, chosen, weights) = spread.experts[rank], batches[rank]
        if not len(tokens):
            return experts.idle(Told(most=5))
        with experts.running(Told(most=5), len(tokens)):
            return experts.layers[0].run(tokens, chosen, weights)

    got = spread.each(go)
    check([got[0], got[2]], [batches[0], batches[2]])


@pytest.mark.parametrize("tokens", [17, 16, 1, 0])
def test_b113_more_tokens_than_a_dispatch_takes_go_in_rounds(layer: Any, tokens: int) -> None:
    """The ranks agree on how many, however few tokens one of them has."""
    spread = layer(2, capacity=16, calls=(calls := []))
    batches = [batch(tokens, seed=1), batch(3, seed=2)]
    check(spread.run(batches, most=max(tokens, 3)), batches)
    assert calls.count("combined") == (4 if tokens > 16 else 2)


def test_b113_the_largest_step_is_compared_at_start(layer: Any, table_part: Any, table: Any) -> None:
    """32 requests and chunks of 64; one of the modes is larger, so that it takes what the other cannot."""
    spread = layer(1, capacity=16)
    assert list(spread.experts[0].tight(64, 32)) == [
        "runner.dispatch: 'table' takes 16 tokens of a rank at once, and a step may have 96: "
        "a larger one goes in 6 rounds"
    ]
    assert not list(layer(1, capacity=96).experts[0].tight(64, 32))
    both = layer(1, decode=table_part(table(1), capacity=16)).experts[0]
    assert list(both.tight(64, 32)) == [
        "runner.decode_dispatch: 'table' takes 16 tokens of a rank at once, and a decode step may have 32: "
        "a larger one goes as prompts do"
    ]


def test_decodes_take_their_own_dispatcher_while_they_fit(layer: Any, table_part: Any, table: Any) -> None:
    prompts: list[str] = []
    decodes: list[str] = []
    spread = layer(1, calls=prompts, decode=table_part(table(1), capacity=4, calls=decodes, format=Format.MASKED))
    for count, prefill, taken in ((4, False, decodes), (5, False, prompts), (1, True, prompts)):
        prompts.clear(), decodes.clear()
        batches = [batch(count)]
        check(spread.run(batches, prefill=prefill), batches)
        assert prompts + decodes == taken != []


def test_as_many_batches_may_be_in_flight_as_either_dispatcher_takes(layer: Any, table_part: Any, table: Any) -> None:
    for normal, decode in ((1, 3), (3, 1)):
        spread = layer(1, in_flight=normal, decode=table_part(table(1), in_flight=decode))
        assert spread.experts[0].in_flight == 1


def test_graphs_are_for_steps_whose_dispatch_can_be_captured(layer: Any, table_part: Any, table: Any) -> None:
    safe = table_part(table(1), provides=frozenset({Capability.GRAPH_SAFE}), capacity=4)
    spread = layer(1, decode=safe)
    assert [spread.experts[0].captures(rows) for rows in (1, 4, 5)] == [True, True, False]
    assert not layer(1).experts[0].captures(1)


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 7, 8])
def test_ranks_with_the_same_tokens_share_them(layer: Any, tokens: int) -> None:
    given = batch(tokens, seed=tokens)
    spread = layer(4, alike=True, calls=(calls := []))
    got = spread.run([given] * 4)
    check(got, [given] * 4)
    sent = sorted(int(call.split()[1]) for call in calls if "dispatch" in call)
    assert sum(sent) == tokens, "none is sent twice"
    assert max(sent) == -(-tokens // 4)


@pytest.mark.parametrize("alike", [True, False])
def test_b117_padding_goes_nowhere_and_counts_for_nothing(layer: Any, alike: bool) -> None:
    """Ranks with rows of [5, 3] and [4, 4, 4] tokens, [1] and [1] * 6: all padding is at one place, and sums match."""
    for lengths in ([[5, 3], [4, 4, 4]], [[1], [1] * 6]):
        spread = layer(2, alike=alike)
        sums = [sum(own) for own in lengths]
        sums = [max(sums)] * 2 if alike else sums
        most = max(sums) + 1
        real = torch.arange(most) < sums[0]
        batches = [batch(most, seed=1 if alike else rank) for rank in range(2)]
        for experts in spread.experts:
            experts.record()

        def go(rank: int, spread: Layer = spread, sums: Any = sums, batches: Any = batches, most: int = most) -> Any:
            experts, padded = spread.experts[rank], torch.arange(most) < sums[rank]
            with experts.running(Told(real=padded, most=most), most):
                return experts.layers[0].run(*batches[rank])

        for rank, got in enumerate(spread.each(go)):
            torch.testing.assert_close(got[: sums[rank]], wanted(*batches[rank])[: sums[rank]])
            assert not got[sums[rank] :].any(), "padding comes back as zeros"
            assert int(spread.experts[rank].drain_counts().sum()) == 2 * sums[rank]
            assert not spread.experts[rank].drain_counts().any()
        assert real.sum() == sums[0]


def test_b097_replicas_are_summed_once(layer: Any) -> None:
    """Two ranks, four experts, 16 tokens: each token is sent by one rank, to one replica of each of its experts."""
    given = batch(16, count=4)
    for spare in (0, 2):
        for alike in (True, False):
            spread = layer(2, count=4, alike=alike, spare=spare)
            check(spread.run([given] * 2), [given] * 2)


def test_b097_replicas_without_a_dispatch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"experts.spare: .* summed several times; set dispatch, or spare = 0"):
        TransformersConfig(experts=ExpertsSettings(spare=2))


@pytest.mark.parametrize("format", list(Format))
def test_what_follows_an_expert_is_of_its_answer_alone(layer: Any, format: Format) -> None:
    """Before answers are weighted and summed, and of the rows that are filled."""
    given = batch(7)
    tokens, experts, weights = given
    parts = torch.tanh(tokens[:, None] * (experts + 1)[..., None]) * weights[..., None]
    spread = layer(2, alike=True, after=nn.Tanh(), format=format)
    for got in spread.run([given] * 2):
        torch.testing.assert_close(got, parts.sum(1))


@pytest.mark.parametrize("many", [1, 3])
def test_another_batch_takes_its_turn_at_both_waits(layer: Any, many: int) -> None:
    """Two batches as greenlets, each with a forward of its own: the same bits as one after the other."""
    greenlet = pytest.importorskip("greenlet")
    spread = layer(1, capacity=4, calls=(calls := []))
    experts = spread.experts[0]
    halves = [batch(4 * many, seed=seed) for seed in range(2)]
    want = [spread.run([half])[0] for half in halves]
    calls.clear()
    workers: list[Any] = []

    def go(which: int) -> torch.Tensor:
        def turn() -> None:
            if not (other := workers[1 - which]).dead:
                other.switch(1 - which) if not other else other.switch()

        with experts.running(Told(turn=turn), len(halves[which][0])):
            return experts.layers[0].run(*halves[which])

    answers: dict[int, torch.Tensor] = {}

    def keep(which: int) -> None:
        answers[which] = go(which)

    workers += [greenlet.greenlet(keep), greenlet.greenlet(keep)]
    workers[0].switch(0)
    while not workers[1].dead:
        workers[1].switch()
    while not workers[0].dead:
        workers[0].switch()
    assert all(torch.equal(answers[which], want[which]) for which in range(2))
    assert calls[:2] == ["dispatch 4"] * 2, "both are under way before one is waited for"
    assert experts.in_flight == 2


def test_what_is_not_shared_evenly_is_refused(layer: Any) -> None:
    with pytest.raises(ConfigError, match=r"8 experts of it and 1 spare slots .* by 4 ranks: set it to 4"):
        layer(4, spare=1)
