"""Decoder layers by torch.compile, one layer at a time: layers that are alike share what was compiled.

Attention through pages is one opaque operation in it. Code is made for one token and for any other number of them;
torch keeps it on disk, so that a later start finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from stepwell_transformers.apart import Report
from stepwell_transformers.fuse.fused import Forward, Fused
from stepwell_transformers.fuse.probe import Probe, Trace, positions, probing, trace
from stepwell_transformers.fuse.probe import forward as run
from stepwell_transformers.paging import NAME, Paging, attend

TOKENS = (1, 5, 3)
"""Of the forwards that compile."""
LIMIT = 64
"""Of variants of one piece of code: all models of a process share a wrapper about layers; torch's own limit is 8."""
_STEP: ContextVar[tuple[Paging, nn.Module]] = ContextVar("step")
"""Of the layer that runs: compiled code is handed tensors and numbers only, and is made anew for other numbers."""


def by_compiler(model: Any, report: Report, backend: str | Callable[..., Any] = "inductor") -> Fused:
    """Compile the decoder layers, as they run through pages; otherwise they run their own code."""
    began = time.monotonic()
    probe = Probe(positions(int(model.config.max_position_embeddings), model.device))
    with probing(model):
        seen = trace(model, probe)
    AttentionInterface.register(NAME, _attend)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, LIMIT)
    layers = _layers(model, seen)
    report(f"compiling {len(layers)} layers, which takes a minute where it was not done before")
    forwards = tuple((layer, _forward(layer.forward, asking, backend)) for layer, asking in layers.items())
    for layer, forward in forwards:
        layer.forward = forward
    every = probe.positions
    for count in TOKENS:
        probe.positions = every[:count]
        with torch.inference_mode():
            run(model, probe, torch.zeros((1, count), dtype=torch.int64))
    return Fused((f"{len(layers)} layers by torch.compile in {time.monotonic() - began:.1f} s",), forwards)


def _layers(model: Any, seen: Trace) -> dict[nn.Module, nn.Module]:
    """The attention of each decoder layer that runs its classes' forwards and nothing else."""
    found: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        asking = [child for child in module.children() if child in seen.asks]
        if len(asking) == 1 and all(_own(part) for part in module.modules()):
            found[module] = asking[0]
    return found


def _own(module: nn.Module) -> bool:
    return not module._forward_hooks and not module._forward_pre_hooks and "forward" not in module.__dict__


def _forward(own: Forward, asking: nn.Module, backend: str | Callable[..., Any]) -> Forward:
    compiled: Forward = torch.compile(own, backend=backend, dynamic=True)

    def through(*args: Any, **more: Any) -> Any:
        paging = more.get("paging")
        if not isinstance(paging, Paging):
            return own(*args, **more)
        token = _STEP.set((paging, asking))
        try:
            return compiled(*args, **{**more, "paging": None})
        finally:
            _STEP.reset(token)

    return through


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    *,
    paging: Paging | None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """As `attend`, which a layer that is not compiled comes to."""
    if paging is None:
        return attend_pages(query, key, value, scaling, sliding_window, s_aux, softcap), None
    return attend(
        module,
        query,
        key,
        value,
        attention_mask,
        scaling,
        dropout,
        sliding_window,
        s_aux,
        softcap,
        paging=paging,
        **more,
    )


@torch.library.custom_op("stepwell::attend_pages", mutates_args=())
def attend_pages(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    sinks: torch.Tensor | None,
    softcap: float | None,
) -> torch.Tensor:
    """The attention of the layer that runs, for compiled code."""
    paging, module = _STEP.get()
    found = attend(module, query, key, value, None, scaling, 0.0, sliding_window, sinks, softcap, paging=paging)
    return found[0].contiguous()


@attend_pages.register_fake
def _shape(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    sinks: torch.Tensor | None,
    softcap: float | None,
) -> torch.Tensor:
    return query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))
