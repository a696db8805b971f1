"""What the transformers library leaves unfused, fused: by kind of module, for any model that has such modules."""

from __future__ import annotations

from typing import Any, Literal

from stepwell import ConfigError
from stepwell_kernels.collective import Group, Solo
from stepwell_transformers.apart import Report, silent
from stepwell_transformers.fuse.fused import Fused

How = Literal["auto", "kernels", "compile", "off"]

SOLO = Solo()

__all__ = ["Fused", "How", "fuse"]


def fuse(model: Any, how: How = "auto", report: Report = silent, group: Group = SOLO) -> Fused:
    """Give a model's modules forwards that do the same in fewer operations, where `paging` goes through them.

    kernels: by fused operations, each proven against the module's own code first; weights are merged in place.
    compile: its layers by torch.compile. auto: kernels on CUDA, off elsewhere. `group`: who has the other parts of it.
    """
    if how == "auto":
        how = "kernels" if model.device.type == "cuda" else "off"
    if how == "kernels":
        from stepwell_transformers.fuse.kernels import by_kernels

        return by_kernels(model, report, group)
    if how == "compile":
        if group.size > 1:
            raise ConfigError("runner.fuse: compile does not go with ranks.tp; use auto, kernels or off")
        from stepwell_transformers.fuse.compiled import by_compiler

        return by_compiler(model, report)
    return Fused()
