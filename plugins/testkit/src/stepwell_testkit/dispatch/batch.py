"""What ranks bring to one dispatch, and the sums they have to get back, by a plain formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell import Traffic
from stepwell_testkit.world import Array


@dataclass(frozen=True)
class Batch:
    """One entry a rank of each. Expert e multiplies a token by e + 1."""

    tokens: list[Array]
    experts: list[Array]
    weights: list[Array]

    def sums(self, rank: int) -> Array:
        """What a rank has to get back."""
        experts = self.experts[rank]
        share = np.where(experts >= 0, self.weights[rank] * (experts + 1), 0.0).sum(axis=1, keepdims=True)
        return np.asarray(self.tokens[rank] * share, np.float32)


def drawn(traffic: Traffic, seed: int, sizes: Sequence[int]) -> Batch:
    """Tokens that bfloat16 has exactly, each with `top_k` experts."""
    dice = np.random.default_rng(seed)
    chosen = [np.argsort(dice.random((size, traffic.experts)), axis=1)[:, : traffic.top_k] for size in sizes]
    return Batch(
        tokens=[exact(dice.standard_normal((size, traffic.hidden))) for size in sizes],
        experts=[each.astype(np.int64) for each in chosen],
        weights=[dice.uniform(-1, 1, (size, traffic.top_k)).astype(np.float32) for size in sizes],
    )


def exact(values: Array) -> Array:
    """Cut to what bfloat16 has exactly, as float32."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def off(got: Array, right: Array) -> float:
    """The largest difference, relative to the largest value; of what is no number, infinity."""
    scale = max(1.0, float(np.abs(right).max(initial=0.0)))
    apart = float(np.abs(got.astype(np.float64) - right).max(initial=0.0)) / scale
    return apart if np.isfinite(apart) else float("inf")
