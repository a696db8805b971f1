"""Attention through pages: each layer writes and reads the pages of the group that it belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import AttentionInterface

from stepwell import Chunked, Full, Window
from stepwell.types import Need
from stepwell_kernels import Batch, PagePool, RaggedRow, paged_attention, write_pages
from stepwell_transformers.latent import Absorbed

if TYPE_CHECKING:
    from stepwell_kernels.paged.place import Place

NAME = "stepwell_paged"
FOREIGN = ("position_bias",)
"""What a layer may hand to its attention that ours does not do."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a layer's pages are."""

    group: int
    index: int
    """Of the layer within its group."""


class Paging(ABC):
    """What attention needs of a step; travels through the model's forward as an extra argument.

    A layer calls `ready`, writes its tokens' K and V (`write`, or a kernel of its own into `place`), then `attend`.
    """

    positions: torch.Tensor
    """Of each token of the batch in its own row."""

    @abstractmethod
    def need(self, layer: int) -> Need:
        """The history that a layer sees."""

    @abstractmethod
    def ready(self, layer: int) -> None:
        """Before a layer reads or writes its pages: what is loaded into them is there from here on."""

    @abstractmethod
    def place(self, layer: int) -> Place | None:
        """Where a kernel writes a layer's K and V; None where `write` is the only way."""

    @abstractmethod
    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write K and V of the batch, [tokens, kv_heads, dim] each, into a layer's pages; K where they hold no V."""

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """From `query` [tokens, heads, dim] to what its layer's pages hold: [tokens, heads, value_dim]."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """What the layers of a group need of a step."""

    pool: PagePool
    batch: Batch
    need: Need


class PlainPaging(Paging):
    """By plain torch, on any device."""

    def __init__(
        self,
        groups: Sequence[GroupStep],
        seats: Mapping[int, Seat],
        positions: torch.Tensor,
        ready: Callable[[int], None],
    ) -> None:
        self._groups, self._seats, self._ready = groups, seats, ready
        self.positions = positions

    def need(self, layer: int) -> Need:
        return self._groups[self._seats[layer].group].need

    def ready(self, layer: int) -> None:
        self._ready(layer)

    def place(self, layer: int) -> None:
        return None

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        seat = self._seats[layer]
        group = self._groups[seat.group]
        write_pages(group.pool.keys(seat.index), keys, group.batch)
        if group.pool.shape.value_dim != 0:
            write_pages(group.pool.values(seat.index), values, group.batch)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        seat = self._seats[layer]
        pool, batch = self._groups[seat.group].pool, self._groups[seat.group].batch
        return paged_attention(query, pool.keys(seat.index), pool.values(seat.index), batch, scale, sinks, softcap)


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
    if sliding_window is not None and (need := paging.need(layer)) != Window(sliding_window - 1):
        raise Foreign(f"sliding_window = {sliding_window} in layer {layer}, where its config says {need}")
    paging.ready(layer)
    paging.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    asked = query[0].transpose(0, 1)
    absorbed = getattr(module, "expand_kv", None)
    if not isinstance(absorbed, Absorbed):
        return paging.attend(layer, asked, scale, s_aux, softcap)[None], None
    found = paging.attend(layer, absorbed.queries(asked), scale, s_aux, softcap)
    return absorbed.answers(found)[None], None


# No mask is registered under that name: the library makes none then, and does not look at positions, which would wait.
AttentionInterface.register(NAME, attend)
