"""The plugin that offers FlashInfer as attention over pages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stepwell import Capability, Context, Offer, PagedAttention, hookimpl
from stepwell_flashinfer.config import FlashInferConfig

if TYPE_CHECKING:
    import torch


def make(config: FlashInferConfig, context: Context) -> PagedAttention[torch.Tensor]:
    """The library, on the current CUDA device."""
    import torch

    from stepwell_flashinfer.attention import FlashInfer

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return FlashInfer(import_module("flashinfer"), config, device)


def _missing() -> str | None:
    if find_spec("flashinfer") is None:
        return "it needs FlashInfer: pip install stepwell-flashinfer[library]"
    return None


@hookimpl
def stepwell_attentions() -> list[Offer[PagedAttention[torch.Tensor]]]:
    """The one offer."""
    return [Offer("flashinfer", make, FlashInferConfig, _missing, frozenset({Capability.GRAPH_SAFE}))]
