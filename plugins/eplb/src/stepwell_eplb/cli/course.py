"""Counts over time: the steps of a file, or draws that go over from one file's counts to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell import ConfigError
from stepwell_eplb.cli.files import read_counts
from stepwell_eplb.greedy import Ints


@dataclass(frozen=True, slots=True)
class Course:
    """So many steps of [layers, experts]."""

    marks: Ints
    """[marks, layers, experts]: counts that were read."""
    steps: int
    tokens: int
    """Of a step and layer, where steps are drawn; 0: the marks are the steps."""
    seed: int

    def __iter__(self) -> Iterator[Ints]:
        if not self.tokens:
            yield from self.marks
            return
        dice = np.random.default_rng(self.seed)
        shares = self.marks / np.maximum(self.marks.sum(axis=2, keepdims=True), 1)
        for step in range(self.steps):
            at = step * (len(shares) - 1) / max(self.steps - 1, 1)
            first = min(int(at), len(shares) - 2) if len(shares) > 1 else 0
            part = at - first
            chance = (1 - part) * shares[first] + part * shares[min(first + 1, len(shares) - 1)]
            yield _drawn(dice, chance, self.tokens)


def _drawn(dice: np.random.Generator, chance: np.ndarray, tokens: int) -> Ints:
    """Tokens of each layer that has a chance; none in the others."""
    drawn = np.zeros(chance.shape, dtype=np.int64)
    some = chance.sum(axis=1) > 0
    drawn[some] = dice.multinomial(tokens, chance[some] / chance[some].sum(axis=1, keepdims=True))
    return drawn


def read_course(paths: Sequence[Path], steps: int | None, tokens: int, seed: int) -> Course:
    """A single file with several steps is replayed; others, or where `steps` says so, are marks to draw between."""
    read = [read_counts(path) for path in paths]
    if len(read) == 1 and len(read[0]) > 1 and steps is None:
        return Course(read[0], len(read[0]), 0, seed)
    for path, one in zip(paths[1:], read[1:], strict=True):
        if one.shape[1:] != read[0].shape[1:]:
            have, first = "x".join(map(str, one.shape[1:])), "x".join(map(str, read[0].shape[1:]))
            raise ConfigError(f"{path}: {have} layers and experts, where {paths[0]} has {first}")
    marks = np.stack([one.sum(axis=0) for one in read])
    return Course(marks, 1000 if steps is None else steps, tokens, seed)
