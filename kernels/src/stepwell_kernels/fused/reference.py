"""The fused operations in plain torch: what the kernels must agree with, and what runs on CPU.

Each rounds where a model's own module does, so that a fused model answers what the model itself does. `ops` says what
each means.
"""

# ruff: noqa: D103

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from stepwell_kernels.fused.norm import Norm

if TYPE_CHECKING:
    from stepwell_kernels.paged.place import Place

Act = Literal["silu", "gelu", "gelu_tanh"]
Spread = Literal["once", "behind", "beside"]
"""How factors of pairs come: once; or all again behind themselves, or each beside itself, so one a dimension."""


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0, late: bool = False
) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        return wide.to(x.dtype)
    if late:
        return (wide * (weight.float() + offset)).to(x.dtype)
    return (weight + offset if offset else weight) * wide.to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    late: bool = False,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if before is not None:
        x = normed(x, before)
    total = residual + x
    return rms_norm(total, weight, eps, offset, late), total


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    return rms_norm(x, norm.weight, norm.eps, norm.offset, norm.late)


def turns(
    positions: torch.Tensor, frequencies: torch.Tensor, scale: float, kind: torch.dtype, spread: Spread
) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[:, None].float() * frequencies
    if spread == "behind":
        angles = torch.cat((angles, angles), -1)
    elif spread == "beside":
        angles = angles.repeat_interleave(2, -1)
    return (angles.cos() * scale).to(kind), (angles.sin() * scale).to(kind)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    q = q if q_norm is None else normed(q, q_norm)
    k = k if k_norm is None else normed(k, k_norm)
    return _rotated(q, cos, sin, interleaved), _rotated(k, cos, sin, interleaved)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    rot = cos.shape[-1]
    turned, rest = x[..., :rot], x[..., rot:]
    if interleaved:
        half = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        half = torch.cat((-turned[..., rot // 2 :], turned[..., : rot // 2]), -1)
    found = (turned * cos[:, None] + half * sin[:, None]).to(x.dtype)
    return torch.cat((found, rest), -1) if rest.shape[-1] else found


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
    q, k = rotate(q, k, cos, sin, q_norm, k_norm, interleaved)
    size = place.tables.page_size
    pages = place.tables.pages[place.token_slots.long(), place.positions // size].long()
    own = pages >= 0
    flat = (pages * size + place.positions % size)[own]
    for into, values in ((place.keys, k), (place.values, v)):
        into.view(-1, *into.shape[2:])[flat] = values[own]
    return q


def most_likely(
    logits: torch.Tensor, slots: torch.Tensor | None = None, last: torch.Tensor | None = None
) -> torch.Tensor:
    tokens = logits.argmax(-1)
    if slots is not None and last is not None:
        last[slots] = tokens.int()
    return tokens


def gated(x: torch.Tensor, act: Act) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return activated(gate, act) * up


def activated(x: torch.Tensor, act: Act) -> torch.Tensor:
    if act == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    found = functional.linear(x if norm is None else normed(x, norm), weight, bias)
    return found if residual is None else residual + found


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    act: Act,
    bias: torch.Tensor | None = None,
    norm: Norm | None = None,
) -> torch.Tensor:
    return gated(linear(x, weight, bias, norm=norm), act)


def linear_add_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    norm: Norm,
    bias: torch.Tensor | None = None,
    before: Norm | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    found = linear(x, weight, bias)
    return add_rms_norm(found, residual, norm.weight, norm.eps, norm.offset, norm.late, before)


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
    product = linear(x, weight, bias).split([count * dim for count, dim in heads], -1)
    q, k, v = (part.unflatten(-1, shape) for part, shape in zip(product, heads, strict=True))
    return rotate_and_write(q, k, v, cos, sin, place, q_norm, k_norm, interleaved)
