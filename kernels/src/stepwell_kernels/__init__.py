"""Page copies and paged attention on tensors; the reference in plain torch, for CPU and CUDA."""

from stepwell_kernels.attention import Batch, RaggedRow, paged_attention, write_pages
from stepwell_kernels.copies import HostPages, load, load_layer, save, save_layer
from stepwell_kernels.pool import PagePool, PageShape

__all__ = [
    "Batch",
    "HostPages",
    "PagePool",
    "PageShape",
    "RaggedRow",
    "load",
    "load_layer",
    "paged_attention",
    "save",
    "save_layer",
    "write_pages",
]
