"""Products of few tokens by their plan, of many by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stepwell_kernels.fused.device.gates import gated
from stepwell_kernels.fused.device.norms import launch_norm
from stepwell_kernels.fused.device.plans import Plan, planned
from stepwell_kernels.fused.device.skinny import join, launch_product

if TYPE_CHECKING:
    from stepwell_kernels.fused.norm import Norm
    from stepwell_kernels.fused.reference import Act


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
    flat, norm = _normed(flat, norm, plan)
    if plan is None:
        found = functional.linear(flat, weight, bias)
        return (found if residual is None else _flat(residual) + found).view(shape)
    more = None if residual is None else _flat(residual)
    if plan.split == 1:
        return launch_product(flat, weight, plan, None, bias, more, norm).view(shape)
    return join(launch_product(flat, weight, plan), x.dtype, bias, more).view(shape)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    act: Act,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    """See `ops.gated_linear`."""
    flat, plan = _flat(x), _plan(x, weight, 2)
    flat, norm = _normed(flat, norm, plan)
    if plan is None:
        found = gated(functional.linear(flat, weight, bias), act)
    else:
        found = launch_product(flat, weight, plan, act, bias, None, norm)
    return found.view(*x.shape[:-1], weight.shape[0] // 2)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _plan(x: torch.Tensor, weight: torch.Tensor, sides: int) -> Plan | None:
    """None: torch's product. Kernels read 16 bytes at once, of weights in one piece, and only of two-byte kinds."""
    tokens = x.numel() // x.shape[-1]
    if x.dtype not in (torch.bfloat16, torch.float16) or weight.dtype != x.dtype or not weight.is_contiguous():
        return None
    if weight.shape[1] % 8 or weight.data_ptr() % 16:
        return None
    return planned(tokens, weight.shape[0] // sides, weight.shape[1], sides == 2)


def _normed(x: torch.Tensor, norm: Norm | None, plan: Plan | None) -> tuple[torch.Tensor, Norm | None]:
    """Norm `x` ahead of its product where that cannot do so itself."""
    if norm is None or (plan is not None and plan.norms and norm.weight is not None):
        return x, norm
    return launch_norm(x, None, x.dtype, norm)[0], None
