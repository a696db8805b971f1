"""Modules of latent attention, known by their parts: what they do is proven like any model's, before it serves."""

from __future__ import annotations

from typing import Any

from torch import nn

from stepwell import ConfigError
from stepwell_transformers.latent.absorbed import Absorbed
from stepwell_transformers.latent.config import latent_of

NUMBERS = ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank")


def absorb(model: Any, name: str, attention: str) -> None:
    """Let attention of a kind ask the latents of a model that has them. ConfigError where its modules do not fit."""
    if not latent_of(model.config):
        return
    found = [module for module in model.modules() if isinstance(getattr(module, "kv_b_proj", None), nn.Module)]
    why = "no module of it has a kv_b_proj" if not found else next(filter(None, map(_unfit, found)), None)
    if why is not None:
        raise ConfigError(f"runner.model: {name} has latent attention of a kind that is not supported yet ({why})")
    for module in found:
        module.expand_kv = Absorbed(module, attention)


def _unfit(module: Any) -> str | None:
    """What of a module is not as latents are read here."""
    kind, product = type(module).__name__, module.kv_b_proj
    if not callable(getattr(module, "expand_kv", None)):
        return f"{kind} makes K and V of latents in no step of its own, expand_kv; newer transformers may"
    if lacking := [number for number in NUMBERS if not isinstance(getattr(module, number, None), int)]:
        return f"{kind} has no {', '.join(lacking)}"
    if not isinstance(product, nn.Linear) or product.bias is not None:
        return f"the kv_b_proj of {kind} is no plain product"
    if product.in_features != module.kv_lora_rank or product.out_features % _head(module):
        return f"the kv_b_proj of {kind} has other sizes than its config says"
    return None


def _head(module: Any) -> int:
    return int(module.qk_nope_head_dim + module.v_head_dim)
