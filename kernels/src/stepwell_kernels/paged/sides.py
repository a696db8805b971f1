"""How the attention kernels find K and V: by strides, and in which parts.

Where values are the first numbers of the keys, as in latents, a kernel reads them once, for scores and for sums; what a
key has behind them it reads beside. One such key serves so many heads that a program takes only a block of them, and
blocks of heads look to the kernels like KV heads that lie in the same place.

    key of a latent   | first: also the value | rest: turned by position |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from stepwell_kernels.pool import within

BLOCK = 64
"""Most heads that a program sums latents for: their sums fill half of its registers."""


@dataclass(frozen=True, slots=True)
class Sides:
    """K and V of one layer, for queries of so many heads."""

    keys: torch.Tensor
    values: torch.Tensor
    latent: bool
    blocks: int
    """KV heads, or blocks of heads."""
    group: int
    """Query heads of each."""

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor, heads: int) -> Sides:
        """Raises ValueError for latents of several heads."""
        if not within(values, keys):
            return cls(keys, values, False, keys.shape[2], heads // keys.shape[2])
        if keys.shape[2] != 1:
            raise ValueError(f"latents are of one head that all share, not of {keys.shape[2]}")
        group = next(size for size in range(min(heads, BLOCK), 0, -1) if heads % size == 0)
        return cls(keys, values, True, heads // group, group)

    def constants(self) -> dict[str, int | bool]:
        """What kernels are compiled for."""
        dim, value_dim = self.keys.shape[3], self.values.shape[3]
        first = value_dim if self.latent else dim
        return {
            "KV_HEADS": self.blocks,
            "GROUP": self.group,
            "DIM": dim,
            "VALUE_DIM": value_dim,
            "DIM_PADDED": _padded(first),
            "VALUE_PADDED": _padded(value_dim),
            "LATENT": self.latent,
            "FIRST": first,
            "REST_PADDED": _padded(dim - first),
            "KEY_TOKEN": self.keys.stride(1),
            "KEY_HEAD": 0 if self.latent else self.keys.stride(2),
            "VALUE_TOKEN": self.values.stride(1),
            "VALUE_HEAD": 0 if self.latent else self.values.stride(2),
        }


def _padded(size: int) -> int:
    """To what a product takes."""
    return max(16, triton.next_power_of_2(max(1, size)))
