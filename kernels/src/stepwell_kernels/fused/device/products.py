"""Products of few tokens by their plan, of many by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stepwell_kernels.fused.device.gates import gated
from stepwell_kernels.fused.device.norms import launch_norm
from stepwell_kernels.fused.device.pieces import processors
from stepwell_kernels.fused.device.plans import Plan, planned
from stepwell_kernels.fused.device.rotary import launch_rotate
from stepwell_kernels.fused.device.skinny import join, launch_product

if TYPE_CHECKING:
    from stepwell_kernels.fused.norm import Norm
    from stepwell_kernels.fused.reference import Act
    from stepwell_kernels.paged.place import Place


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    """See `ops.linear`."""
    flat, plan = _flat(x), _plan(x, weight, 1)
    shape = (*x.shape[:-1], weight.shape[0])
    flat = _normed(flat, norm)
    if plan is None:
        found = functional.linear(flat, weight, bias)
        return (found if residual is None else _flat(residual) + found).view(shape)
    more = None if residual is None else _flat(residual)
    if plan.split == 1:
        return launch_product(flat, weight, plan, None, bias, more).view(shape)
    return join(launch_product(flat, weight, plan), x.dtype, bias, more).view(shape)


def linear_parts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `ops.linear_parts`."""
    plan = _plan(x, weight, 1)
    return functional.linear(x, weight) if plan is None else launch_product(x, weight, plan)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    act: Act,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    """See `ops.gated_linear`."""
    flat, plan = _flat(x), _plan(x, weight, 2)
    flat = _normed(flat, norm)
    if plan is None:
        found = gated(functional.linear(flat, weight, bias), act)
    else:
        found = launch_product(flat, weight, plan, act, bias)
    return found.view(*x.shape[:-1], weight.shape[0] // 2)


def linear_add_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm: Norm,
    bias: torch.Tensor | None = None,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.linear_add_norm`."""
    flat, plan = _flat(x), _plan(x, weight, 1)
    if plan is None:
        parts, bias = functional.linear(flat, weight, bias), None
    elif plan.split == 1:
        parts, bias = launch_product(flat, weight, plan, None, bias), None
    else:
        parts = launch_product(flat, weight, plan)
    found, total = launch_norm(parts, _flat(residual), x.dtype, norm, before, bias)
    return found.view(residual.shape), total.view(residual.shape)


def project_and_write(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    heads: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    cos: torch.Tensor,
    sin: torch.Tensor,
    place: Place,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> torch.Tensor:
    """See `ops.project_and_write`."""
    flat, plan = _flat(x), _plan(x, weight, 1)
    sizes = [count * dim for count, dim in heads]
    later = None
    if plan is None:
        product = functional.linear(flat, weight, bias)
    elif plan.split == 1:
        product = launch_product(flat, weight, plan, None, bias)
    else:
        product = launch_product(flat, weight, plan)
        later = None if bias is None else tuple(bias.split(sizes))
    q, k, v = (part.unflatten(-1, shape) for part, shape in zip(product.split(sizes, -1), heads, strict=True))
    return launch_rotate(q, k, v, cos, sin, None, place, x.dtype, q_norm, k_norm, interleaved, later)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _plan(x: torch.Tensor, weight: torch.Tensor, sides: int) -> Plan | None:
    """None: torch's product. Kernels read 16 bytes at once, of weights in one piece, and only of two-byte kinds."""
    tokens = x.numel() // x.shape[-1]
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype or not weight.is_contiguous():
        return None
    if weight.shape[1] % 8 or weight.data_ptr() % 16:
        return None
    return planned(tokens, weight.shape[0] // sides, weight.shape[1], sides == 2, processors(x.device))


def _normed(x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    return x if norm is None else launch_norm(x, None, x.dtype, norm)[0]
