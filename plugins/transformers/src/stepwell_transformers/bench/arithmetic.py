"""The least that a step must read and compute, from a model's shape alone: what measured times are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell import GroupSpec
from stepwell.models import ModelShape
from stepwell.types import Need


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of a model, by how a step uses them."""

    embedding: int
    """A row a token: as good as nothing, unless it is the head, too."""
    head: int
    """Read for every step that samples; of a model that ties the two it is the embedding."""
    experts: int
    """Of all experts of all layers."""
    rest: int
    count: int = 0
    """Experts of a layer."""
    each: int = 0
    """Experts that a token goes through."""
    item_bytes: int = 2

    def read(self, tokens: int) -> float:
        """Bytes that a step of so many tokens must read; of experts those that some token goes to, on average."""
        used = 1 - (1 - self.each / self.count) ** tokens if self.count else 0.0
        return self.item_bytes * (self.head + self.rest + used * self.experts)

    @property
    def active(self) -> float:
        """Parameters that a token of a prompt is multiplied with; the head is for sampled tokens only."""
        return self.rest + (self.experts * self.each / self.count if self.count else 0)


def kv_read(groups: Sequence[GroupSpec], length: int) -> int:
    """Bytes of K and V that one decode row reads that continues at `length`."""
    return sum(group.token_bytes * (length - group.need.lo(length)) for group in groups)


def decode_bytes(weights: Weights, groups: Sequence[GroupSpec], batch: int, length: int) -> float:
    """Bytes that a decode step of a batch must read: weights once, K and V for each row."""
    return weights.read(batch) + batch * kv_read(groups, length)


def seen(need: Need, start: int, count: int) -> int:
    """Pairs of a token and a token that it sees, itself included, for `count` tokens from `start`."""
    return sum(at + 1 - need.lo(at) for at in range(start, start + count))


def prefill_flops(weights: Weights, shape: ModelShape, heads: int, start: int, count: int) -> float:
    """Operations for `count` tokens of a prompt from `start`: matrix products, attention, the head for the last one."""
    pairs = {layer.need: seen(layer.need, start, count) for layer in shape.layers}
    dims = sum(pairs[layer.need] * heads * (layer.key_dim + layer.value_dim) for layer in shape.layers)
    return 2.0 * (weights.active * count + weights.head + dims)


def floor_s(nbytes: float, bandwidth: float) -> float:
    """Seconds that reading takes at least, at so many bytes a second."""
    return nbytes / bandwidth


@dataclass(frozen=True, slots=True)
class Overlap:
    """A step with loads, held against its parts alone; all in seconds."""

    together: float
    compute: float
    copy: float

    @property
    def exposed(self) -> float:
        """Time that the loads add to the step."""
        return max(0.0, self.together - self.compute)

    @property
    def share(self) -> float:
        """Of the copy, that is not hidden behind compute."""
        return self.exposed / self.copy

    @property
    def bound(self) -> str:
        """What decides at least how long it takes."""
        return "compute" if self.compute >= self.copy else "copy"

    @property
    def over(self) -> float:
        """How much longer it takes than the longer of the two alone, as a share."""
        return self.together / max(self.compute, self.copy) - 1

    @property
    def good(self) -> bool:
        """Whether under a tenth of the copy shows or, where it is the longer, the whole is within a tenth of it."""
        return self.share < 0.10 if self.bound == "compute" else self.together <= 1.10 * self.copy


def hit_bound(compute_all: float, compute_rest: float, copy: float) -> float:
    """How many times sooner a hit can answer than computing everything, where loads hide behind compute; seconds in."""
    return compute_all / max(compute_rest, copy)
