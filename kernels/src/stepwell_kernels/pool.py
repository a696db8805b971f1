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

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.token_bytes * self.page_size


class PagePool:
    """`data` is [layers, 2, pages, page_size, kv_heads, head_dim]; index 0 of the second axis is K, 1 is V.

    Zeroed, so that what a mask leaves out is never NaN.
    """

    def __init__(self, shape: PageShape, pages: int, device: torch.device | str) -> None:
        self.shape = shape
        self.pages = pages
        size = (shape.layers, 2, pages, shape.page_size, shape.kv_heads, shape.head_dim)
        self.data = torch.zeros(size, dtype=shape.dtype, device=device)

    def keys(self, layer: int) -> torch.Tensor:
        """K of a layer: [pages, page_size, kv_heads, head_dim]."""
        return self.data[layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """V of a layer: [pages, page_size, kv_heads, head_dim]."""
        return self.data[layer, 1]
