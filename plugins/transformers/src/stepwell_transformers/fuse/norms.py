"""RMSNorms, told by what they answer."""

from __future__ import annotations

import copy

import torch
from torch import nn

from stepwell_kernels.fused import Norm, rms_norm
from stepwell_transformers.fuse.agree import Left, near, noise, off

EPS = ("variance_epsilon", "eps", "epsilon")
SCALES = (1e-3, 1.0, 30.0)
"""Of random inputs: in the smallest, what is added to the mean square counts."""
CARRIED = "_stepwell_normed"
FORMS = ((0.0, False), (0.0, True), (1.0, True), (1.0, False))
"""Offset of the weight, and whether it multiplies late."""


def alike(module: nn.Module) -> bool:
    """Whether a module is built as an RMSNorm is: a weight of one dimension, and an epsilon."""
    weights = dict(module.named_parameters())
    return set(weights) == {"weight"} and weights["weight"].dim() == 1 and _eps(module) is not None


def read(module: nn.Module) -> Norm | Left:
    """The norm that a module is, or why it is none."""
    eps, weight = _eps(module), module.weight
    assert eps is not None and isinstance(weight, torch.Tensor)
    twin = copy.deepcopy(module).requires_grad_(False)
    assert isinstance(twin.weight, torch.Tensor)
    twin.weight.copy_(noise(tuple(weight.shape), 0.3, weight) + 0.9)  # in a new model all weights are alike
    inputs = [(noise((16, len(weight)), 1.0, weight) + 0.3) * scale for scale in SCALES]
    wants = [twin(x) for x in inputs]
    best, distance = None, float("inf")
    for offset, late in FORMS:
        pairs = zip(inputs, wants, strict=True)
        worst = max(off(rms_norm(x, twin.weight, eps, offset, late), want) for x, want in pairs)
        if worst < distance:
            best, distance = Norm(weight, eps, offset, late), worst
    return best if best is not None and near(distance, weight.dtype) else Left("it is no RMSNorm", distance)


def _eps(module: nn.Module) -> float | None:
    found = [getattr(module, name) for name in EPS if isinstance(getattr(module, name, None), float)]
    return found[0] if found else None


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """The norm of `x`, which whoever made it may have made too."""
    own: tuple[Norm, torch.Tensor] | None = getattr(x, CARRIED, None)
    if own is not None and own[0] is norm:
        return own[1].view(x.shape)
    return rms_norm(x, norm.weight, norm.eps, norm.offset, norm.late)


def carry(x: torch.Tensor, norm: Norm, done: torch.Tensor) -> None:
    """Leave the norm of `x` with it, for whoever asks for it next: a model hands its layers' sums on untouched."""
    setattr(x, CARRIED, (norm, done))
