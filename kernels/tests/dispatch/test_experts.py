"""Experts of a rank against a plain loop over tokens, in every way in which tokens can lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stepwell import Dispatched, Format
from stepwell_kernels.dispatch.experts import ExpertWeights, dequantised, filled, grouped
from stepwell_kernels.dispatch.permute import by_expert

EXPERTS, HIDDEN, INNER = 5, 256, 48


def gate(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=1)
    return F.silu(left) * right


def layer(transposed: bool = False, biased: bool = False, seed: int = 0) -> ExpertWeights:
    dice = torch.Generator().manual_seed(seed)
    up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=dice) / 16
    down = torch.randn(EXPERTS, HIDDEN, INNER, generator=dice) / 7
    biases = [torch.randn(EXPERTS, size, generator=dice) for size in (2 * INNER, HIDDEN)] if biased else [None, None]
    if transposed:
        up, down = up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()
    return ExpertWeights(up, down, gate, *biases, transposed)


def alone(token: torch.Tensor, expert: int, weights: ExpertWeights) -> torch.Tensor:
    """One token through one expert."""
    up, down = weights.up[expert], weights.down[expert]
    inner = token[None] @ (up if weights.transposed else up.t())
    inner = gate(inner if weights.up_bias is None else inner + weights.up_bias[expert])
    outer = inner @ (down if weights.transposed else down.t())
    outer = outer if weights.down_bias is None else outer + weights.down_bias[expert]
    return (outer if weights.post is None else weights.post(outer))[0]


def tokens_of(counts: list[int], seed: int = 1) -> torch.Tensor:
    return torch.randn(sum(counts), HIDDEN, generator=torch.Generator().manual_seed(seed))


def sorted_rows(counts: list[int], tokens: torch.Tensor, known: bool = True) -> Dispatched[torch.Tensor]:
    return Dispatched(tokens, torch.tensor(counts), None, rows=tuple(counts) if known else None)


@pytest.mark.parametrize("counts", [[3, 0, 17, 1, 2], [0, 0, 0, 0, 40], [0] * 5])
@pytest.mark.parametrize("weights", [layer(), layer(True), layer(biased=True), layer(True, True)])
def test_rows_sorted_by_expert(counts: list[int], weights: ExpertWeights) -> None:
    tokens = tokens_of(counts)
    outputs = grouped(sorted_rows(counts, tokens, known=False), Format.SORTED, weights)
    whose = [expert for expert, count in enumerate(counts) for _ in range(count)]
    assert outputs.shape == tokens.shape
    for row, expert in enumerate(whose):
        torch.testing.assert_close(outputs[row], alone(tokens[row], expert, weights))


def test_rows_with_room_behind_them() -> None:
    counts, room = [2, 0, 4, 1, 0], 4
    tokens = torch.full((EXPERTS, room, HIDDEN), float("nan"))
    for expert, count in enumerate(counts):
        tokens[expert, :count] = tokens_of([count], expert)
    outputs = grouped(sorted_rows(counts, tokens, known=False), Format.MASKED, layer())
    assert outputs.shape == tokens.shape
    for expert, count in enumerate(counts):
        for row in range(count):
            torch.testing.assert_close(outputs[expert, row], alone(tokens[expert, row], expert, layer()))


@pytest.mark.parametrize("transposed", [True, False])
def test_the_kernel_for_filled_rows_answers_as_the_loop_does(transposed: bool) -> None:
    pytest.importorskip("triton")
    counts, weights = [2, 0, 20, 1, 0], replace(layer(transposed, biased=True), post=torch.tanh)
    tokens = torch.randn(EXPERTS, 20, HIDDEN, generator=torch.Generator().manual_seed(0))
    scales = torch.rand(EXPERTS, 20, HIDDEN // 128, generator=torch.Generator().manual_seed(1))
    got = replace(sorted_rows(counts, tokens), scales=scales)
    there = "cuda" if torch.cuda.is_available() else "cpu"
    outputs = filled(on(there, got), moved(weights, there)).cpu()
    right = grouped(got, Format.MASKED, weights)
    for expert, count in enumerate(counts):
        torch.testing.assert_close(outputs[expert, :count], right[expert, :count], rtol=1e-4, atol=1e-5)


def on(device: str, got: Dispatched[torch.Tensor]) -> Dispatched[torch.Tensor]:
    assert got.scales is not None
    return replace(got, tokens=got.tokens.to(device), counts=got.counts.to(device), scales=got.scales.to(device))


def moved(weights: ExpertWeights, device: str) -> ExpertWeights:
    assert weights.up_bias is not None and weights.down_bias is not None
    return replace(
        weights,
        up=weights.up.to(device),
        down=weights.down.to(device),
        up_bias=weights.up_bias.to(device),
        down_bias=weights.down_bias.to(device),
    )


def once(known: bool) -> Dispatched[torch.Tensor]:
    dice = torch.Generator().manual_seed(3)
    experts = torch.stack([torch.randperm(EXPERTS, generator=dice)[:3] for _ in range(9)])
    experts[0, 1:] = -1
    experts[4, 0] = -1
    weights = torch.rand(9, 3, generator=dice)
    counts = by_expert(experts, EXPERTS).counts
    rows = tuple(counts.tolist()) if known else None
    return Dispatched(tokens_of([9]), counts, None, experts, weights, rows=rows)


@pytest.mark.parametrize("known", [True, False])
def test_tokens_that_come_once_are_summed_by_weight(known: bool) -> None:
    got, weights = once(known), replace(layer(biased=True), post=torch.tanh)
    assert got.experts is not None and got.weights is not None
    outputs = grouped(got, Format.ONCE, weights)
    for row in range(9):
        pairs = [(int(e), w) for e, w in zip(got.experts[row], got.weights[row], strict=True) if e >= 0]
        right = sum((alone(got.tokens[row], e, weights) * w for e, w in pairs), torch.zeros(HIDDEN))
        torch.testing.assert_close(outputs[row], right)


def test_a_token_has_the_same_bits_whatever_else_is_there() -> None:
    tokens = tokens_of([100])
    many = grouped(sorted_rows([0, 0, 100, 0, 0], tokens), Format.SORTED, layer())
    for count in (1, 2, 7, 16, 33):
        few = grouped(sorted_rows([0, 0, count, 0, 0], tokens[:count]), Format.SORTED, layer())
        assert torch.equal(few, many[:count]), count


def test_eight_bits_are_multiplied_by_their_scales() -> None:
    tokens = tokens_of([4, 0, 3, 0, 1])
    scales = tokens.unflatten(-1, (-1, 128)).abs().amax(-1) / 448
    small = (tokens.unflatten(-1, (-1, 128)) / scales[..., None]).flatten(-2).to(torch.float8_e4m3fn)
    again = dequantised(small, scales, torch.float32)
    torch.testing.assert_close(again, tokens, rtol=0.07, atol=0.02)
    counts = [4, 0, 3, 0, 1]
    got = Dispatched(small, torch.tensor(counts), None, scales=scales)
    right = grouped(sorted_rows(counts, again), Format.SORTED, layer())
    assert torch.equal(grouped(got, Format.SORTED, layer()), right)


def test_no_tokens_that_come_once() -> None:
    none = torch.empty(0, 3)
    got = Dispatched(tokens_of([0]), torch.zeros(EXPERTS, dtype=torch.int64), None, none.long(), none)
    assert grouped(got, Format.ONCE, layer()).shape == (0, HIDDEN)
