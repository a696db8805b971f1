"""Cosines and sines of positions by one operation, where they depend on positions alone.

A model's own code takes about ten for them; in a decode step each of those is a kernel that does next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepwell_kernels.fused import Spread, turns
from stepwell_transformers.fuse.agree import Left, near, off
from stepwell_transformers.fuse.probe import Called

FREQUENCIES = "inv_freq"
SCALING = "attention_scaling"
KINDS = f"_{FREQUENCIES}"
"""Behind the name of a kind of layers, where each has frequencies of its own."""
ORIGINAL = "original"
"""Copies of frequencies, kept for those that change."""

SPREADS: tuple[Spread, ...] = ("behind", "beside", "once")
Turned = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kind:
    """Of some layers."""

    frequencies: torch.Tensor
    scale: float
    spread: Spread

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> Turned:
        """Factors [1, tokens, dimensions] of positions [1, tokens], for a stream like `x`."""
        cos, sin = turns(positions[0], self.frequencies, self.scale, x.dtype, self.spread)
        return cos[None], sin[None]


Turns = Mapping[str | None, Kind]
"""By the kind of layers; None: of them all."""


def alike(module: nn.Module, calls: Mapping[nn.Module, Called]) -> bool:
    """Whether a module answers with two tensors, and has frequencies."""
    call = calls.get(module)
    return (
        call is not None
        and bool(_frequencies(module))
        and isinstance(call.answer, tuple)
        and len(call.answer) == 2
        and all(isinstance(part, torch.Tensor) for part in call.answer)
    )


def read(module: nn.Module, call: Called, context: int) -> Turns | Left:
    """What a module does, or why it is left."""
    x = call.args[0] if call.args else call.more["x"]
    found: dict[str | None, Kind] = {}
    for name, frequencies in _frequencies(module).items():
        scale = getattr(module, SCALING if name is None else f"{name}_{SCALING}", 1.0)
        kinds = [Kind(frequencies.float().clone(), float(scale), spread) for spread in SPREADS]
        distances = [_off(module, name, kind, x, context) for kind in kinds]
        best = min(range(len(kinds)), key=distances.__getitem__)
        if not near(distances[best], torch.float32):
            return Left("it depends on more than positions", distances[best])
        found[name] = kinds[best]
    return found


def _frequencies(module: nn.Module) -> dict[str | None, torch.Tensor]:
    """By kind of layers."""
    own = {name: buffer for name, buffer in module.named_buffers(recurse=False) if ORIGINAL not in name}
    if FREQUENCIES in own:
        return {None: own[FREQUENCIES]}
    return {name.removesuffix(KINDS): buffer for name, buffer in own.items() if name.endswith(KINDS)}


def _off(module: nn.Module, name: str | None, kind: Kind, x: torch.Tensor, context: int) -> float:
    """How far it is off near and far, each by itself: frequencies of some models change with the farthest position."""
    wide = x.float()
    ranges = (range(8), range(max(0, context - 8), context), range(0, context, max(1, context // 8)))
    worst = 0.0
    for places in ranges:
        positions = torch.tensor([list(places)], device=x.device)
        own = module(wide, positions) if name is None else module(wide, positions, name)
        worst = max(worst, *(off(a, b) for a, b in zip(kind.turn(wide, positions), own, strict=True)))
    return worst


def forward(own: Callable[..., Any], twin: Turns) -> Callable[..., Any]:
    """A forward of the module: its twin for positions of one row, its own code otherwise."""

    def run(x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None, **more: Any) -> Any:
        kind = twin.get(layer_type)
        if kind is None or more or position_ids.dim() != 2 or position_ids.shape[0] != 1:
            return own(x, position_ids, *([] if layer_type is None else [layer_type]), **more)
        return kind.turn(x, position_ids)

    return run
