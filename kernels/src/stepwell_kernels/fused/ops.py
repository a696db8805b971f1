"""The fused operations: kernels for CUDA tensors, plain torch for others and where Triton is missing."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from stepwell_kernels.fused import reference
from stepwell_kernels.fused.norm import Norm
from stepwell_kernels.fused.reference import Act, Spread

if TYPE_CHECKING:
    from stepwell_kernels.paged.place import Place


@cache
def _triton() -> bool:
    return find_spec("triton") is not None


def _on_device(x: torch.Tensor) -> bool:
    return x.is_cuda and _triton()


# Modules of kernels are imported where they are first needed: without CUDA, nothing here needs Triton.


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0, late: bool = False
) -> torch.Tensor:
    """`x` [..., dim] by its root mean square, times (weight + offset). See `Norm`."""
    if _on_device(x):
        from stepwell_kernels.fused.device import norms

        return norms.rms_norm(x, weight, eps, offset, late)
    return reference.rms_norm(x, weight, eps, offset, late)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    late: bool = False,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers (norm of the sum, sum) of `residual` and `x`; `before` norms `x` first (layers with sandwich norms)."""
    if _on_device(x):
        from stepwell_kernels.fused.device import norms

        return norms.add_rms_norm(x, residual, weight, eps, offset, late, before)
    return reference.add_rms_norm(x, residual, weight, eps, offset, late, before)


def turns(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, kind: torch.dtype, spread: Spread
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of `positions` [tokens] times `frequencies` [pairs], both times `scale`.

    Answers [tokens, pairs] each, or twice as many.
    """
    if _on_device(positions):
        from stepwell_kernels.fused.device import turns as kernels

        return kernels.turns(positions, frequencies, scale, kind, spread)
    return reference.turns(positions, frequencies, scale, kind, spread)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`q` and `k` [tokens, heads, dim], normed per head where asked, with their first `rot` dimensions turned.

    `cos`, `sin`: [tokens, rot], one factor a dimension: x * cos + other * sin, where the other of a pair is rot / 2
    away, or beside it (`interleaved`); the first of a pair takes the other's negative.
    """
    if _on_device(q):
        from stepwell_kernels.fused.device import rotary

        return rotary.rotate(q, k, cos, sin, q_norm, k_norm, interleaved)
    return reference.rotate(q, k, cos, sin, q_norm, k_norm, interleaved)


def rotate_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    place: Place,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> torch.Tensor:
    """`rotate`, then write K and `v` into the pages of `place`; answers q. Padding tokens write nothing.

    q, k and v may be slices of one product: only the last dimension need be dense.
    """
    if _on_device(q):
        from stepwell_kernels.fused.device import rotary

        return rotary.rotate_and_write(q, k, v, cos, sin, place, q_norm, k_norm, interleaved)
    return reference.rotate_and_write(q, k, v, cos, sin, place, q_norm, k_norm, interleaved)


def most_likely(
    logits: torch.Tensor, slots: torch.Tensor | None = None, last: torch.Tensor | None = None
) -> torch.Tensor:
    """The highest of each row of `logits` [rows, vocab], int64; of equal ones the first.

    Given both, `last` [slots], int32, has it afterwards at each row's of `slots`, int32.
    """
    if _on_device(logits) and logits.stride(1) == 1:
        from stepwell_kernels.fused.device import choice

        return choice.most_likely(logits, slots, last)
    return reference.most_likely(logits, slots, last)


def gated(x: torch.Tensor, act: Act) -> torch.Tensor:
    """`x` [..., gate | up]: act(gate) * up."""
    if _on_device(x):
        from stepwell_kernels.fused.device import gates

        return gates.gated(x, act)
    return reference.gated(x, act)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    """norm(x) @ weight.T + bias + residual, for `x` [..., in] and `weight` [out, in]."""
    if _on_device(x):
        from stepwell_kernels.fused.device import products

        return products.linear(x, weight, bias, residual, norm)
    return reference.linear(x, weight, bias, residual, norm)


def linear_parts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`linear` of `x` [tokens, cols]; or float32 parts of it [parts, tokens, rows], for whoever sums anyway."""
    if _on_device(x):
        from stepwell_kernels.fused.device import products

        return products.linear_parts(x, weight)
    return reference.linear(x, weight)


def joined(parts: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """What `linear` answers, of what `linear_parts` does."""
    if parts.dim() == 2:
        return parts
    if _on_device(parts):
        from stepwell_kernels.fused.device import skinny

        return skinny.join(parts, kind)
    return parts.sum(0).to(kind)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    act: Act,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    """act(gate) * up of norm(x) @ weight.T + bias, for `weight` [gate | up, in]."""
    if _on_device(x):
        from stepwell_kernels.fused.device import products

        return products.gated_linear(x, weight, act, bias, norm)
    return reference.gated_linear(x, weight, act, bias, norm)


def linear_add_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm: Norm,
    bias: torch.Tensor | None = None,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers (norm of the sum, sum) of `residual` and x @ weight.T + bias, which `before` norms first.

    Faster than one after the other: the parts of a product that is split are summed where they are normed.
    """
    if _on_device(x):
        from stepwell_kernels.fused.device import products

        return products.linear_add_norm(x, weight, residual, norm, bias, before)
    return reference.linear_add_norm(x, weight, residual, norm, bias, before)


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
    """The product x @ weight.T + bias, cut into q, k and v by `heads` (count, dimensions), then `rotate_and_write`."""
    if _on_device(x):
        from stepwell_kernels.fused.device import products

        return products.project_and_write(x, weight, bias, heads, cos, sin, place, q_norm, k_norm, interleaved)
    return reference.project_and_write(x, weight, bias, heads, cos, sin, place, q_norm, k_norm, interleaved)
