"""Weights of several linears as one, without a second copy: the old parameters become views of the merged one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Merged:
    """What one product computes: the outputs of several linears beside each other."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    sizes: tuple[int, ...]


def plain(linear: object, *kinds: type[nn.Linear]) -> bool:
    """Whether a linear, or one of these kinds, is nothing but its weights: not quantised, hooked or replaced."""
    return (
        isinstance(linear, nn.Linear)
        and type(linear) in (nn.Linear, *kinds)
        and type(linear.weight) is nn.Parameter
        and linear.weight.dtype.is_floating_point
        and not linear._forward_hooks
        and not linear._forward_pre_hooks
        and "forward" not in linear.__dict__
    )


def merge(linears: Sequence[nn.Linear]) -> Merged | None:
    """Merge in place; None where they are not alike, and nothing has changed."""
    if not all(plain(linear) for linear in linears):
        return None
    if len({(linear.in_features, linear.weight.dtype, linear.weight.device) for linear in linears}) > 1:
        return None
    biases = [linear.bias for linear in linears]
    if any(bias is None for bias in biases) != all(bias is None for bias in biases):
        return None
    sizes = tuple(linear.out_features for linear in linears)
    if len(linears) == 1:
        return Merged(linears[0].weight, linears[0].bias, sizes)
    weight = torch.cat([linear.weight.detach() for linear in linears])
    for linear, part in zip(linears, torch.split(weight, list(sizes)), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    bias = None
    if biases[0] is not None:
        bias = torch.cat([linear.bias.detach() for linear in linears])
        for linear, part in zip(linears, torch.split(bias, list(sizes)), strict=True):
            linear.bias = nn.Parameter(part, requires_grad=False)
    return Merged(weight, bias, sizes)
