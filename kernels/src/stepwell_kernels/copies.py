"""Copies of pages between a device's layer-first pool and the page-first host arena."""

from __future__ import annotations

import torch

from stepwell_kernels.pool import PagePool, PageShape


class HostPages:
    """The slots of one group in the host arena as a tensor [slots, layers, 2, page_size, kv_heads, head_dim].

    Shares the arena's memory. `stride` is the distance between slots in bytes, a multiple of the item size; what lies
    between a page's payload and the next slot is never touched.
    """

    def __init__(self, memory: memoryview, offset: int, stride: int, slots: int, shape: PageShape) -> None:
        item = shape.dtype.itemsize
        if offset % item or stride % item:
            raise ValueError(f"slots at {offset} + n * {stride} bytes do not align with items of {item} bytes")
        flat = torch.frombuffer(memory, dtype=torch.uint8).view(shape.dtype)
        inner = (shape.layers, 2, shape.page_size, shape.kv_heads, shape.head_dim)
        strides = [1]
        for size in reversed(inner[1:]):
            strides.append(strides[-1] * size)
        self.data = torch.as_strided(flat, (slots, *inner), (stride // item, *reversed(strides)), offset // item)
        self.shape = shape
        self._pinned: int | None = None

    def pin(self, memory: memoryview) -> None:
        """Make the arena reachable for copies of a CUDA device, until `unpin`. RuntimeError where that is refused."""
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        _check(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.numel(), 0), "cudaHostRegister")
        self._pinned = whole.data_ptr()

    def unpin(self) -> None:
        """Undo `pin`; nothing where it was not done."""
        if self._pinned is not None:
            _check(torch.cuda.cudart().cudaHostUnregister(self._pinned), "cudaHostUnregister")
            self._pinned = None


def _check(code: object, call: str) -> None:
    if int(code) != 0:  # type: ignore[call-overload]  # cudart answers an enum of its own
        raise RuntimeError(f"{call} failed with code {code}")


def load_layer(pool: PagePool, host: HostPages, layer: int, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy one layer of host pages to device pages. Ids are int64, `host_ids` on CPU, `device_ids` on the device."""
    pages = host.data[host_ids, layer].movedim(1, 0)
    pool.data[layer].index_copy_(1, device_ids, pages.to(pool.data.device, non_blocking=True))


def save(pool: PagePool, host: HostPages, device_ids: torch.Tensor, host_ids: torch.Tensor) -> None:
    """Copy all layers of device pages to host pages. Ids as for `load_layer`."""
    pages = pool.data.index_select(2, device_ids).permute(2, 0, 1, 3, 4, 5)
    host.data.index_copy_(0, host_ids, pages.to("cpu").contiguous())
