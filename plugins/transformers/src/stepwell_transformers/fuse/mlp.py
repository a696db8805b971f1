"""Gated MLPs: one product for gate and up, one for down."""

from __future__ import annotations

import torch
from torch import nn

from stepwell_kernels.collective import Group
from stepwell_kernels.fused import Act, gated_linear
from stepwell_kernels.fused.reference import activated
from stepwell_transformers.fuse.agree import SCALES, Left, all_near, noise, off
from stepwell_transformers.fuse.branch import Call, FusedBranch
from stepwell_transformers.fuse.merge import Merged, merge, plain
from stepwell_transformers.spread.rows import RowLinear

ACTS: tuple[Act, ...] = ("silu", "gelu_tanh", "gelu")


class FusedMLP(FusedBranch):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, up: Merged, down: nn.Linear, act: Act) -> None:
        super().__init__(down)
        self._up, self._act = up, act

    def inner(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return gated_linear(x, self._up.weight, self._act, self._up.bias)


def alike(module: nn.Module) -> bool:
    """Whether a module is built as a gated MLP is."""
    names = dict(module.named_children())
    ups = {"gate_proj", "up_proj"} <= set(names) or "gate_up_proj" in names
    return ups and plain(names.get("down_proj"), RowLinear)


def fuse_mlp(module: nn.Module, group: Group) -> FusedMLP | Left:
    """The twin of a gated MLP, or why there is none."""
    down = module.down_proj
    assert isinstance(down, nn.Linear)
    act = _act(module, down.weight)
    if act is None:
        return Left("its activation is another")
    names = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    ups = [part for name in names if isinstance(part := getattr(module, name), nn.Linear)]
    merged = merge(ups) if len(ups) == len(names) else None
    if merged is None or merged.weight.shape[0] != 2 * down.in_features:
        return Left("its weights cannot be merged")
    twin = FusedMLP(merged, down, act)
    worst = 0.0
    for scale in SCALES:
        x = noise((4, merged.weight.shape[1]), scale, down.weight)
        worst = max(worst, off(twin.add(x, {}), module(x)))
    return twin if all_near(worst, down.weight.dtype, group) else Left("it answers otherwise", worst)


def _act(module: nn.Module, like: torch.Tensor) -> Act | None:
    """Which activation it has; told in float32, where no two are alike."""
    named = [getattr(module, name) for name in (*module.__dict__, *module._modules) if "act" in name]
    acts = [act for act in named if callable(act)]
    if len(acts) != 1:
        return None
    x = torch.linspace(-6, 6, 97, device=like.device)
    want = acts[0](x)
    return next((act for act in ACTS if off(activated(x, act), want) < 1e-5), None)
