"""Page copies and paged attention on tensors; the reference in plain torch, for CPU and CUDA.

Names are imported when they are first asked for: whoever lists plugins imports this package, and should get no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "attention": ("Batch", "RaggedRow", "paged_attention", "write_pages"),
    "copies": ("HostPages", "load", "load_layer", "save", "save_layer"),
    "pool": ("PagePool", "PageShape"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
