"""A cache that keeps nothing, for layers that count positions by what a cache has seen.

Such a layer takes its tokens for one row that goes on behind the cache's tokens. In a ragged batch every token has a
position of its own, so this cache says of each how many tokens came before it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from stepwell_transformers.paging import Paging

FLAG = "attn_temperature_tuning"
"""Of a config and of its attention modules: queries are scaled by position, which each layer counts by itself."""


class Positions:
    """Stands in for a cache of transformers in one call of one attention module."""

    def __init__(self, positions: torch.Tensor) -> None:
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        """What a token's place in the batch lacks to its position, for each token."""
        return self._before

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages keep them."""
        return key, value


def counting(model: torch.nn.Module) -> list[Any]:
    """The attention modules that count positions by themselves."""
    return [module for module in model.modules() if getattr(module, FLAG, False) and hasattr(module, "layer_idx")]


def tell_positions(module: torch.nn.Module) -> None:
    """Give a module the positions of every batch that goes through pages."""
    # Transformers renamed the argument within its major version.
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"

    def before(
        _: torch.nn.Module, args: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        paging = more.get("paging")
        return args, {**more, name: Positions(paging.positions)} if isinstance(paging, Paging) else more

    module.register_forward_pre_hook(before, with_kwargs=True)
