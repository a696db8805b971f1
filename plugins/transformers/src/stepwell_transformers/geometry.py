"""The attention groups of a model: which layers share pools, and what a page of each holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stepwell import ConfigError, GroupSpec
from stepwell.models import LayerShape, ModelShape, read_shape
from stepwell_kernels import PageShape
from stepwell_transformers.latent import latent_of
from stepwell_transformers.paging import Seat

RENAMED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")
"""Fields that some configs call otherwise; transformers answers to the usual name."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a model's layers keep, and where."""

    shape: ModelShape
    seats: Mapping[int, Seat]
    rows: Sequence[LayerShape]
    """What each layer of a group keeps, by group."""
    latent: int = 0
    """How much of a key is its value, where layers keep latents."""
    ranks: int = 1
    whole: frozenset[int] = frozenset()
    """Layers of which every rank keeps all."""

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.shape.layers)

    def groups(self, item_bytes: int) -> tuple[GroupSpec, ...]:
        """The groups, for K and V of so many bytes an item."""
        return tuple(
            replace(group, heads=row.kv_heads, ranks=1 if set(group.layers) <= self.whole else self.ranks)
            for group, row in zip(self.shape.groups(item_bytes), self.rows, strict=True)
        )

    def of_rank(self, ranks: int, whole: frozenset[int]) -> Geometry:
        """What a rank keeps where each has some of the KV heads, but in the layers `whole`, where each has all."""

        def part(at: int, layer: LayerShape) -> LayerShape:
            return layer if at in whole else replace(layer, kv_heads=layer.kv_heads // ranks)

        layers = tuple(part(at, layer) for at, layer in enumerate(self.shape.layers))
        rows = [layers[group.layers[0]] for group in self.shape.groups()]
        return replace(self, shape=replace(self.shape, layers=layers), rows=rows, ranks=ranks, whole=whole)

    def pages(self, page_size: int, dtype: torch.dtype) -> list[PageShape]:
        """Of each group."""
        return [
            PageShape(len(group.layers), page_size, row.kv_heads, row.key_dim, dtype, row.value_dim, self.latent)
            for group, row in zip(self.shape.groups(), self.rows, strict=True)
        ]


def geometry(config: Any, name: str) -> Geometry:
    """ConfigError for a config that does not say it, or whose layers do not fit the pages of a group."""
    fields = {**config.to_dict(), **{field: getattr(config, field, None) for field in RENAMED}}
    try:
        shape = read_shape(fields)
    except ConfigError as error:
        raise ConfigError(f"runner.model: {name}: {error}") from error
    seats: dict[int, Seat] = {}
    rows = []
    for number, group in enumerate(shape.groups()):
        seats |= {layer: Seat(number, index) for index, layer in enumerate(group.layers)}
        kept = {shape.layers[layer] for layer in group.layers}
        if len(kept) > 1:
            raise ConfigError(
                f"runner.model: {name} has layers of different shapes that see the same, which is not supported yet"
            )
        rows += kept
    return Geometry(shape, seats, rows, latent_of(config))
