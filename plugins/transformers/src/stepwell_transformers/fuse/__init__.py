"""What the transformers library leaves unfused, fused: by kind of module, for any model that has such modules."""

from __future__ import annotations

from typing import Any, Literal

from stepwell_transformers.apart import Report, silent
from stepwell_transformers.fuse.fused import Fused

How = Literal["auto", "kernels", "compile", "off"]

__all__ = ["Fused", "How", "fuse"]


def fuse(model: Any, how: How = "auto", report: Report = silent) -> Fused:
    """Give a model's modules forwards that do the same in fewer operations, where `paging` goes through them.

    kernels: by fused operations, each proven against the module's own code first; weights are merged in place.
    compile: its layers by torch.compile. auto: kernels on CUDA, off elsewhere.
    """
    if how == "auto":
        how = "kernels" if model.device.type == "cuda" else "off"
    if how == "kernels":
        from stepwell_transformers.fuse.kernels import by_kernels

        return by_kernels(model, report)
    if how == "compile":
        from stepwell_transformers.fuse.compiled import by_compiler

        return by_compiler(model, report)
    return Fused()
