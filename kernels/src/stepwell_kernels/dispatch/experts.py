"""What the experts of a rank make of the tokens that arrived there, however these lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from stepwell import Dispatched, Format
from stepwell_kernels.dispatch.permute import by_expert, sum_rows

EVEN = 16
"""Rows of a product on the CPU are filled up to a multiple of so many: below it libraries pick a kernel by the number
of rows, and a token's result would depend on what else is in the batch."""
RUN = 128
"""Numbers that share a scale."""

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Rows times what a layer's experts have (weight, bias)."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """The experts of one layer that are on this rank."""

    up: torch.Tensor
    """[experts, 2 * inner, hidden], or [experts, hidden, 2 * inner] where `transposed`; inner, where nothing gates."""
    down: torch.Tensor
    """[experts, hidden, inner], or [experts, inner, hidden] where `transposed`."""
    gate: Callable[[torch.Tensor], torch.Tensor]
    """Makes [rows, inner] of what `up` gives."""
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    transposed: bool = False
    post: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Applied to each row of the result, before it is weighted."""

    def __len__(self) -> int:
        return len(self.up)


def grouped(got: Dispatched[torch.Tensor], format: Format, weights: ExpertWeights) -> torch.Tensor:
    """The outputs for `Dispatcher.combine_start`: rows as they came, or weighted sums where tokens came once."""
    if format is Format.MASKED and got.tokens.is_cuda:
        return filled(got, weights)
    tokens = dequantised(got.tokens, got.scales, weights.up.dtype)
    if format is Format.MASKED:
        return _masked(tokens, got, weights)
    if format is Format.ONCE:
        return _once(tokens, got, weights)
    return _rows(tokens, got.counts, got.rows, weights)


def dequantised(tokens: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Tokens times the scale of each run of 128 numbers; as they are where there is none."""
    if scales is None:
        return tokens
    runs = tokens.float().view(*scales.shape, RUN) * scales.unsqueeze(-1)
    return runs.view(tokens.shape).to(dtype)


def _once(tokens: torch.Tensor, got: Dispatched[torch.Tensor], weights: ExpertWeights) -> torch.Tensor:
    assert got.experts is not None and got.weights is not None, "tokens that come once come with their experts"
    order = by_expert(got.experts, len(weights))
    rows = got.rows
    if rows is None and tokens.device.type == "cpu":
        rows = tuple(order.counts.tolist())
    sent = order.tokens if rows is None else order.tokens[: sum(rows)]
    return sum_rows(_rows(tokens.index_select(0, sent), order.counts, rows, weights), order.slots, got.weights)


def _masked(tokens: torch.Tensor, got: Dispatched[torch.Tensor], weights: ExpertWeights) -> torch.Tensor:
    outputs = torch.empty_like(tokens)
    for expert, rows in enumerate(got.rows or got.counts.tolist()):
        if rows:
            outputs[expert, :rows] = _one(tokens[expert, :rows], expert, weights)
    return outputs


def filled(got: Dispatched[torch.Tensor], weights: ExpertWeights) -> torch.Tensor:
    """Of MASKED, by a kernel that skips what is not filled; no size is read on the host."""
    from stepwell_kernels.dispatch.device.masked import masked_product

    shape = got.tokens.shape
    up = masked_product(got.tokens, got.counts, _turned(weights.up, weights), weights.up_bias, got.scales)
    inner = weights.gate(up.flatten(0, 1)).view(*shape[:2], -1)
    outputs = masked_product(inner, got.counts, _turned(weights.down, weights), weights.down_bias)
    return outputs if weights.post is None else weights.post(outputs.flatten(0, 1)).view(shape)


def _rows(
    tokens: torch.Tensor, counts: torch.Tensor, rows: tuple[int, ...] | None, weights: ExpertWeights
) -> torch.Tensor:
    """`tokens` [rows, hidden] lie sorted by expert; what is behind the last one's may become anything."""
    if len(tokens) and has_grouped(tokens, weights):
        return _rows_at_once(tokens, counts, weights)
    outputs = torch.empty_like(tokens)
    start = 0
    for expert, count in enumerate(rows or counts.tolist()):
        if count:
            outputs[start : start + count] = _one(tokens[start : start + count], expert, weights)
        start += count
    return outputs


def has_grouped(tokens: torch.Tensor, weights: ExpertWeights) -> bool:
    """Whether torch multiplies all experts' rows in one kernel here."""
    fits = tokens.is_cuda and tokens.dtype == torch.bfloat16 and torch.cuda.get_device_capability(tokens.device)[0] >= 9
    aligned = all(size % 8 == 0 for weight in (weights.up, weights.down) for size in weight.shape[1:])
    return fits and aligned and hasattr(torch, "_grouped_mm")


def _rows_at_once(tokens: torch.Tensor, counts: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """No size is read on the host."""
    ends = counts.cumsum(0).to(torch.int32)
    whose = None
    if weights.up_bias is not None or weights.down_bias is not None:
        places = torch.arange(len(tokens), device=tokens.device, dtype=torch.int32)
        whose = torch.searchsorted(ends, places, right=True).clamp_(max=len(weights) - 1)

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y = torch._grouped_mm(x, _turned(weight, weights), offs=ends)
        return y if bias is None else y.add_(bias[whose])

    return _through(tokens, product, weights)


def _one(tokens: torch.Tensor, expert: int, weights: ExpertWeights) -> torch.Tensor:
    """What one expert makes of some tokens."""
    count = len(tokens)
    if tokens.device.type == "cpu" and count % EVEN:
        tokens = functional.pad(tokens, (0, 0, 0, EVEN - count % EVEN))

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y = x @ _turned(weight[expert], weights)
        return y if bias is None else y.add_(bias[expert])

    return _through(tokens, product, weights)[:count]


def _through(tokens: torch.Tensor, product: Product, weights: ExpertWeights) -> torch.Tensor:
    inner = weights.gate(product(tokens, weights.up, weights.up_bias))
    outputs = product(inner, weights.down, weights.down_bias)
    return outputs if weights.post is None else weights.post(outputs)


def _turned(weight: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """As a product's right side."""
    return weight if weights.transposed else weight.transpose(-2, -1)
