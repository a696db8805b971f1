"""What the library can do, and runs of it for layers that it does."""

from __future__ import annotations

from types import ModuleType

import torch

from stepwell import AttentionLayers, AttentionRun, Chunked, PagedAttention
from stepwell_flashinfer.config import FlashInferConfig
from stepwell_flashinfer.runs import Decodes, Graph, Prompts, Space, WithSinks

DIMS = (64, 128, 256)
DTYPES = ("float16", "bfloat16")
SHARED = 4
"""Heads on the same keys from which tensor cores pay in decodes."""
GROUPS = (1, 2, 3, 4, 8)
"""Heads on the same keys that the kernel without tensor cores knows."""


class FlashInfer(PagedAttention[torch.Tensor]):
    """All runs share one workspace: they come one after another, in one stream."""

    def __init__(self, library: ModuleType, config: FlashInferConfig, device: torch.device) -> None:
        self._library, self._config = library, config
        self._space = Space(torch.zeros(config.workspace_mib << 20, dtype=torch.uint8, device=device))

    def lacks(self, layers: AttentionLayers) -> str | None:
        if layers.dtype not in DTYPES:
            return layers.dtype
        if isinstance(layers.need, Chunked):
            return "chunks"
        if layers.key_dim != layers.value_dim:
            return f"keys of {layers.key_dim} with values of {layers.value_dim}"
        if layers.key_dim not in DIMS:
            return f"head dims of {layers.key_dim}"
        if layers.sinks and layers.softcap is not None:
            return "sinks with a soft cap"
        if layers.sinks and not hasattr(self._library, "BatchAttentionWithAttentionSinkWrapper"):
            return "sinks, in this version"
        return None

    def decodes(self, layers: AttentionLayers, graph: Graph | None = None) -> AttentionRun[torch.Tensor]:
        if layers.sinks:
            return WithSinks(self._library, layers, self._space, self._config.backend, graph)
        return Decodes(self._library, layers, self._space, self._on_tensor_cores(layers), graph)

    def prompts(self, layers: AttentionLayers) -> AttentionRun[torch.Tensor]:
        if layers.sinks:
            return WithSinks(self._library, layers, self._space, self._config.backend)
        return Prompts(self._library, layers, self._space, self._config.backend)

    def _on_tensor_cores(self, layers: AttentionLayers) -> bool:
        group = layers.heads // layers.kv_heads
        if self._config.tensor_cores == "auto":
            return group >= SHARED or group not in GROUPS
        return self._config.tensor_cores == "on"
