"""Decoder layers by torch.compile, one layer at a time: layers that are alike share what was compiled.

Attention through pages stays outside of what is compiled. Code is made for one token and for any other number of them;
torch keeps it on disk, so that a later start finds it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from stepwell_transformers.apart import Report
from stepwell_transformers.fuse.fused import Forward, Fused
from stepwell_transformers.fuse.probe import Probe, positions, probing, trace
from stepwell_transformers.fuse.probe import forward as run
from stepwell_transformers.paging import NAME, Paging, attend

TOKENS = (1, 5, 3)
"""Of the forwards that compile."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """A step's paging on its way through compiled code, which is compiled again for arguments of another class."""

    paging: Paging


def by_compiler(model: Any, report: Report, backend: str = "inductor") -> Fused:
    """Compile the decoder layers, as they run through pages; otherwise they run their own code."""
    began = time.monotonic()
    AttentionInterface.register(NAME, torch.compiler.disable(_attend))
    probe = Probe(positions(int(model.config.max_position_embeddings), model.device))
    with probing(model):
        asks = trace(model, probe).asks
    layers = [module for module in model.modules() if set(module.children()) & set(asks) and _untouched(module)]
    report(f"compiling {len(layers)} layers, which takes a minute where it was not done before")
    forwards: list[tuple[nn.Module, Forward]] = [(layer, _forward(layer.forward, backend)) for layer in layers]
    for layer, forward in forwards:
        layer.forward = forward  # type: ignore[assignment]
    every = probe.positions
    for count in TOKENS:
        probe.positions = every[:count]
        with torch.inference_mode():
            run(model, probe, torch.zeros((1, count), dtype=torch.int64))
    line = f"{len(layers)} layers by torch.compile in {time.monotonic() - began:.1f} s"
    return Fused((line,), tuple(forwards))


def _attend(*args: Any, paging: _Passed | Paging, **more: Any) -> Any:
    return attend(*args, paging=paging.paging if isinstance(paging, _Passed) else paging, **more)


def _untouched(layer: nn.Module) -> bool:
    """Whether all of a layer runs its classes' forwards and nothing else."""
    parts = list(layer.modules())
    return not any(part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__ for part in parts)


def _forward(own: Forward, backend: str) -> Forward:
    compiled: Forward = torch.compile(own, backend=backend, dynamic=True)

    def through(*args: Any, **more: Any) -> Any:
        paging = more.pop("paging", None)
        if not isinstance(paging, Paging):
            return own(*args, **more)
        return compiled(*args, **more, paging=_Passed(paging))

    return through
