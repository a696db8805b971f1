"""How far what a fused module answers is from its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell_kernels.collective import Group

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Of the length of the own answer: several roundings apart, where another formula is off by tenths."""
SCALES = (1.0, 30.0)
"""Of random inputs: what clips or saturates shows at the larger one."""


@dataclass(frozen=True, slots=True)
class Left:
    """Why a module keeps its own forward."""

    why: str
    off: float | None = None
    """How far its nearest twin is from it."""


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The length of the difference, by the length of `want`; infinity where shapes differ or a number is none."""
    if got.shape != want.shape:
        return float("inf")
    length = want.float().norm().clamp(min=1e-20)
    found = float((got.float() - want.float()).norm() / length)
    return found if found == found else float("inf")


def near(distance: float, dtype: torch.dtype) -> bool:
    """Whether that is rounding."""
    return distance <= TOLERANCE.get(dtype, 0.0)


def all_near(distance: float, dtype: torch.dtype, group: Group) -> bool:
    """Whether it is on every rank: what is fused on one and not on another would sum in another order, or never."""
    return bool(group.least(int(near(distance, dtype)))[0])


def noise(shape: tuple[int, ...], scale: float, like: torch.Tensor) -> torch.Tensor:
    """Random numbers, the same each time, on the device of a weight."""
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(like.device, like.dtype)
