"""Page copies and paged attention on tensors; the reference in plain torch, for CPU and CUDA."""

from stepwell_kernels.attention import Batch, RaggedRow, paged_attention, write_pages
from stepwell_kernels.copies import HostPages, load_layer, save
from stepwell_kernels.pool import PagePool, PageShape

__all__ = [
    "Batch",
    "HostPages",
    "PagePool",
    "PageShape",
    "RaggedRow",
    "load_layer",
    "paged_attention",
    "save",
    "write_pages",
]
