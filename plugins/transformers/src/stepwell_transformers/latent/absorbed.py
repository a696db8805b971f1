"""Attention among latents: what would have made K and V of every token is done to queries and answers instead.

A head's score is q . (W_k c) for a latent c, which is (W_k^T q) . c; and the sum of its values w (W_v c) is W_v (sum of
w c). So one key serves all heads, [latent | rotated key], its first part is its value too, and no token is expanded.

Prompts take that way as well. It costs more products a pair of tokens than K and V at full width, but no history has to
be expanded for each chunk of a prompt.
"""

from __future__ import annotations

from typing import Any

import torch


class Absorbed:
    """Takes the place of a module's `expand_kv`; and does its part on the other side of attention."""

    def __init__(self, module: Any, attention: str) -> None:
        """`attention`: the implementation that reads latents; by any other the module expands them as ever."""
        self._module, self._attention = module, attention
        self._plain, self._values = int(module.qk_nope_head_dim), int(module.v_head_dim)

    def __call__(self, latents: torch.Tensor, turned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [1, 1, tokens, dim] of `latents` [1, 1, tokens, latent] and rotated keys beside them."""
        if self._module.config._attn_implementation != self._attention:
            keys, values = type(self._module).expand_kv(self._module, latents, turned)
            return keys, values
        keys = torch.cat((latents, turned), dim=-1)
        return keys, keys[..., : latents.shape[-1]]

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """Of [tokens, heads, plain + rotated], those that latents are asked by: [tokens, heads, latent + rotated]."""
        plain, turned = query[..., : self._plain], query[..., self._plain :]
        weight = self._weight[:, : self._plain]
        return torch.cat((torch.matmul(plain.transpose(0, 1), weight).transpose(0, 1), turned), dim=-1)

    def answers(self, found: torch.Tensor) -> torch.Tensor:
        """Of latents that heads have summed, [tokens, heads, latent], their values: [tokens, heads, value_dim]."""
        weight = self._weight[:, self._plain :]
        return torch.matmul(found.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)

    @property
    def _weight(self) -> torch.Tensor:
        """[heads, plain + value_dim, latent]; of the heads that this rank has."""
        weight: torch.Tensor = self._module.kv_b_proj.weight
        return weight.view(-1, self._plain + self._values, weight.shape[-1])
