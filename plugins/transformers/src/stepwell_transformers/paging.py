"""Attention through pages: each layer writes and reads the pages of the group that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from stepwell import Chunked, Full, Window
from stepwell.types import Need
from stepwell_kernels import Batch, PagePool, RaggedRow, paged_attention, write_pages

NAME = "stepwell_paged"
FOREIGN = ("position_bias",)
"""What a layer may hand to its attention that ours does not do."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a layer's pages are."""

    group: int
    index: int
    """Of the layer within its group."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """What the layers of a group need of a step."""

    pool: PagePool
    batch: Batch
    need: Need


@dataclass(frozen=True, slots=True)
class Paging:
    """What attention needs of a step; travels through the model's forward as an extra argument."""

    groups: Sequence[GroupStep]
    seats: Mapping[int, Seat]
    """By layer."""
    positions: torch.Tensor
    """Of each token of the batch in its own row."""
    before_layer: Callable[[int], None]
    """Called before a layer reads its pages: its loads have to be done by then."""


class Foreign(Exception):
    """A layer asks for attention that ours is not."""


def lay_out(rows: Sequence[RaggedRow], need: Need, page_size: int, device: torch.device) -> Batch:
    """The rows of a step, for layers that need so much history."""
    match need:
        case Full():
            return Batch(rows, page_size, device)
        case Window(tokens):
            return Batch(rows, page_size, device, window=tokens)
        case Chunked(tokens):
            return Batch(rows, page_size, device, chunk=tokens)


def attend(
    module: torch.nn.Module,
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
    paging: Paging,
    **more: object,
) -> tuple[torch.Tensor, None]:
    """The attention of every layer: `query` [1, heads, tokens, head_dim], K and V with their own heads."""
    for name in FOREIGN:
        if more.get(name) is not None:
            raise Foreign(name)
    layer = module.layer_idx
    assert isinstance(layer, int)
    seat = paging.seats[layer]
    group = paging.groups[seat.group]
    if sliding_window is not None and group.need != Window(sliding_window - 1):
        raise Foreign(f"sliding_window = {sliding_window} in layer {layer}, where its config says {group.need}")
    paging.before_layer(layer)
    keys, values = group.pool.keys(seat.index), group.pool.values(seat.index)
    write_pages(keys, key[0].transpose(0, 1), group.batch)
    write_pages(values, value[0].transpose(0, 1), group.batch)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    found = paged_attention(query[0].transpose(0, 1), keys, values, group.batch, scale, s_aux, softcap)
    return found[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Paged attention masks by itself."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _no_mask)
