"""The pages of one attention group in device memory, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PageShape:
    """What one page holds: K and V of `page_size` tokens of all layers of a group."""

    layers: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    value_dim: int | None = None
    """Of V, where it is not `head_dim`; 0 where values are a part of the keys, and pages hold no V."""
    latent: int = 0
    """Where pages hold no V: how many of the first numbers of a key are its value."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Of a head of K, and of V where there is one."""
        if self.value_dim == 0:
            return (self.head_dim,)
        return self.head_dim, self.head_dim if self.value_dim is None else self.value_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers."""
        return self.layers * self.kv_heads * sum(self.dims) * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.token_bytes * self.page_size


def within(values: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether values are no memory of their own, but the first numbers of the keys."""
    return values.data_ptr() == keys.data_ptr()


class PagePool:
    """`sides` are K and V, or K only: [layers, pages, page_size, kv_heads, dim] each.

    Zeroed, so that what a mask leaves out is never NaN.
    """

    def __init__(self, shape: PageShape, pages: int, device: torch.device | str) -> None:
        self.shape = shape
        self.pages = pages
        size = (shape.layers, pages, shape.page_size, shape.kv_heads)
        self.sides = [torch.zeros((*size, dim), dtype=shape.dtype, device=device) for dim in shape.dims]

    def keys(self, layer: int) -> torch.Tensor:
        """K of a layer: [pages, page_size, kv_heads, head_dim]."""
        return self.sides[0][layer]

    def values(self, layer: int) -> torch.Tensor:
        """V of a layer: [pages, page_size, kv_heads, value_dim]; a view of K where pages hold no V."""
        if self.shape.value_dim == 0:
            return self.keys(layer)[..., : self.shape.latent]
        return self.sides[1][layer]
