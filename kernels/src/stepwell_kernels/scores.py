"""Attention whose scores are changed before or within the softmax: capped, or beside a sink."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

SCORES = 1 << 25
"""Most scores that are in memory at once: 128 MiB of them."""
PAD = 8
"""Numbers by which heads grow for a sink: one is needed, so many keep rows aligned."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What scores become."""

    scale: float
    sinks: torch.Tensor | None
    """[kv_heads, groups]: the score of a token whose value is zero, beside those of the history."""
    softcap: float | None


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """`query` [rows, kv_heads, groups, queries, dim] over `keys` and `values` [rows, kv_heads, tokens, dim].

    `mask`: true where a token is seen; it broadcasts to [rows, kv_heads, groups, queries, tokens]. The softmax is in
    float32 at least. Answers [rows, kv_heads, groups, queries, value_dim].
    """
    count = query.shape[3]
    step = max(1, SCORES // max(1, query[:, :, :, :1, 0].numel() * keys.shape[2]))
    parts = [
        _part(query[:, :, :, at : at + step], keys, values, mask[..., at : at + step, :], scores)
        for at in range(0, count, step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)


def attend_with_sinks(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, sinks: torch.Tensor
) -> torch.Tensor:
    """The same for one row and sinks alone, with no scores in memory: a sink is one more key, which only it looks at.

    `query` [kv_heads, groups, queries, dim], `keys` and `values` [kv_heads, tokens, dim], `mask` [queries, tokens + 1],
    of which the last is true. Answers [kv_heads, groups, queries, value_dim].
    """
    heads, groups, count, dim = query.shape
    tokens, width = keys.shape[1], max(dim + PAD, values.shape[2])
    wide = query.new_zeros((heads, groups, count, width))
    wide[..., :dim] = query
    wide[..., dim] = (sinks / scale)[:, :, None]
    k, v = (side.new_zeros((heads, tokens + 1, width)) for side in (keys, values))
    k[:, :tokens, :dim] = keys
    k[:, tokens, dim] = 1
    v[:, :tokens, : values.shape[2]] = values
    k, v = (side[:, None].expand(-1, groups, -1, -1) for side in (k, v))
    return scaled_dot_product_attention(wide, k, v, attn_mask=mask, scale=scale)[..., : values.shape[2]]


def _part(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scores: Scores
) -> torch.Tensor:
    rows, heads, groups, count, dim = query.shape
    flat = query.reshape(rows, heads, groups * count, dim) @ keys.transpose(-1, -2)
    found = flat.view(rows, heads, groups, count, -1).float() * scores.scale
    if scores.softcap is not None:
        found = torch.tanh_(found.div_(scores.softcap)).mul_(scores.softcap)
    weights = _softmax(found.masked_fill_(~mask, float("-inf")), scores.sinks)
    out = weights.to(values.dtype).view(rows, heads, groups * count, -1) @ values
    return out.view(rows, heads, groups, count, -1)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Over the last axis; a sink takes its share of the sum, and has no weight of its own."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    own = sinks[None, :, :, None, None].float()
    top = torch.maximum(scores.amax(dim=-1, keepdim=True), own)
    weights = torch.exp_(scores.sub_(top))
    return weights.div_(weights.sum(dim=-1, keepdim=True) + torch.exp(own - top))
