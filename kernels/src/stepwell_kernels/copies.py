"""Copies of pages between a device's layer-first pool and the page-first host arena."""

from __future__ import annotations

from typing import Any

import torch

from stepwell_kernels.pool import PagePool, PageShape


class HostPages:
    """The slots of one group in the host arena; each part of one holds, layer by layer, K and then V of its heads.

    `sides` are all K and all V, [slots, layers, page_size, parts, heads of a part, dim] each; they share the arena's
    memory. `stride` is the distance between slots and `apart` that between parts, in bytes and multiples of the item
    size; what lies between the payload of a part and the next is never touched.
    """

    def __init__(
        self, memory: memoryview, offset: int, stride: int, slots: int, shape: PageShape, parts: int = 1, apart: int = 0
    ) -> None:
        item, heads = shape.dtype.itemsize, shape.kv_heads // parts
        if shape.kv_heads % parts:
            raise ValueError(f"{shape.kv_heads} heads do not make {parts} equal parts")
        if offset % item or stride % item or apart % item:
            raise ValueError(
                f"slots at {offset} + n * {stride} bytes, parts of them at n * {apart}, do not align with items of "
                f"{item} bytes"
            )
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        flat = self._bytes[: len(memory) // item * item].view(shape.dtype)
        layer = shape.page_size * heads * sum(shape.dims)
        starts = (offset // item, offset // item + shape.page_size * heads * shape.head_dim)[: len(shape.dims)]
        self.sides = [
            torch.as_strided(
                flat,
                (slots, shape.layers, shape.page_size, parts, heads, dim),
                (stride // item, layer, heads * dim, apart // item, dim, 1),
                start,
            )
            for dim, start in zip(shape.dims, starts, strict=True)
        ]
        self.shape = shape
        self.slots = slots
        self.parts, self.apart = parts, apart
        self._pinned = False

    def pin(self) -> None:
        """Register the memory with CUDA, so that a device reaches it at full speed. Raises RuntimeError."""
        code = int(_cudart().cudaHostRegister(self._bytes.data_ptr(), self._bytes.numel(), 0))
        if code:
            raise RuntimeError(f"cudaHostRegister of {self._bytes.numel()} bytes failed with code {code}")
        self._pinned = True

    def unpin(self) -> None:
        """Take the registration back, where there is one, before the memory goes."""
        if self._pinned:
            _cudart().cudaHostUnregister(self._bytes.data_ptr())
            self._pinned = False


def _cudart() -> Any:
    library: Any = torch.cuda
    return library.cudart()


def load_layer(pool: PagePool, host: HostPages, layer: int, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy one layer of host pages to device pages. Ids are int64, `host_ids` on CPU, `device_ids` on the device."""
    for mine, theirs in zip(pool.sides, host.sides, strict=True):
        pages = theirs[:, layer].index_select(0, host_ids).flatten(2, 3)
        mine[layer].index_copy_(0, device_ids, pages.to(mine.device))


def load(pool: PagePool, host: HostPages, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy all layers of host pages to device pages."""
    for layer in range(pool.shape.layers):
        load_layer(pool, host, layer, device_ids, host_ids)


def save_layer(pool: PagePool, host: HostPages, layer: int, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy one layer of device pages to host pages. Ids as for `load_layer`."""
    for mine, theirs in zip(pool.sides, host.sides, strict=True):
        pages = mine[layer].index_select(0, device_ids).to("cpu")
        theirs[:, layer].index_copy_(0, host_ids, pages.unflatten(2, (host.parts, -1)))


def save(pool: PagePool, host: HostPages, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy all layers of device pages to host pages."""
    for layer in range(pool.shape.layers):
        save_layer(pool, host, layer, device_ids, host_ids)
