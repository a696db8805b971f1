"""Loads of experts, drawn: [layers, experts] tokens of several sorts, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from stepwell_eplb.greedy import Ints

Dice = np.random.Generator
Shape = tuple[int, int]
Shares = npt.NDArray[np.float64]
TOKENS = 10_000_000
"""Of a layer."""


def zipf(dice: Dice, shape: Shape) -> Shares:
    """The i-th hottest expert is as likely as 1 / i."""
    return dice.permuted(np.broadcast_to(1 / np.arange(1, shape[1] + 1), shape), axis=1)


def lognormal(dice: Dice, shape: Shape) -> Shares:
    """Sigma 1."""
    return dice.lognormal(0, 1, shape)


def dirichlet(dice: Dice, shape: Shape) -> Shares:
    """Concentration 0.5."""
    return dice.gamma(0.5, 1, shape)


def few_hot(dice: Dice, shape: Shape) -> Shares:
    """One expert in thirty has twenty times as much as others."""
    return np.where(dice.random(shape) < 1 / 30, 20.0, 1.0) * dice.uniform(0.8, 1.2, shape)


def uniform(dice: Dice, shape: Shape) -> Shares:
    """Between nothing and twice the mean."""
    return dice.random(shape)


def served(dice: Dice, shape: Shape) -> Shares:
    """Like what large models show: most near the mean, a tail, one or two experts of a layer at several times it."""
    body = dice.lognormal(0, 0.65, shape)
    body[np.arange(shape[0]), dice.integers(0, shape[1], shape[0])] *= dice.uniform(4, 9, shape[0])
    return body


SORTS: Mapping[str, Callable[[Dice, Shape], Shares]] = {
    "zipf": zipf,
    "lognormal": lognormal,
    "dirichlet": dirichlet,
    "few hot": few_hot,
    "uniform": uniform,
    "served": served,
}


def draw(sort: str, seed: int, layers: int = 58, experts: int = 256) -> Ints:
    """Tokens of each expert."""
    return tokens_of(SORTS[sort](np.random.default_rng(seed), (layers, experts)))


def drifted(load: Ints, seed: int, by: float = 0.25) -> Ints:
    """The same some time later: each expert's tokens times a lognormal factor of that sigma."""
    return tokens_of(load * np.random.default_rng(seed).lognormal(0, by, load.shape))


def tokens_of(shares: Shares) -> Ints:
    """Whole tokens, `TOKENS` a layer but for what rounding takes."""
    return np.asarray(shares / shares.sum(axis=1, keepdims=True) * TOKENS, dtype=np.int64)
