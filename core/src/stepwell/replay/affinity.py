"""Which experts a step reads, by a stated model of what routing keys have to do with experts.

Requests of one routing key are about one thing, so their tokens go to the same few experts more often than chance has
it. The model: each key has `favoured` of the E experts of a layer, drawn at random from the key's text and a seed. A
token of the key chooses its k experts, all different, among the favoured with probability `affinity`, and among all E
else, each set of k as likely as any other. A token without a key chooses among all. So expert e is chosen by a token of
key q with the probability

    p(q, e) = affinity * k / favoured + (1 - affinity) * k / E      if q favours e
    p(q, e) = (1 - affinity) * k / E                                if not

and, as tokens choose independently of each other, a step with n(q) tokens of each key q touches on average

    sum over e of 1 - product over q of (1 - p(q, e)) ^ n(q)

experts. That mean is exact. One layer stands for all: keys favour as many experts in each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

REMEMBERED = 1 << 16
"""Batches whose experts are remembered; decoding repeats the same one often."""

Chances = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Affinity:
    """How keys choose experts."""

    experts: int
    """Of one layer."""
    chosen: int
    """By one token."""
    affinity: float = 0.0
    """Probability that a token chooses among its key's favoured experts."""
    favoured: int = 0
    """Experts that a key favours."""
    seed: int = 0

    def favours(self, key: str) -> npt.NDArray[np.int64]:
        """The experts of a key: the same wherever and whenever it is asked."""
        digest = hashlib.sha256(f"{self.seed}:{key}".encode()).digest()
        dice = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        return np.sort(dice.permutation(self.experts)[: self.favoured])

    def chances(self, key: str | None) -> Chances:
        """For each expert the probability that a token of the key chooses it."""
        evenly = self.chosen / self.experts
        if key is None or not self.affinity:
            return np.full(self.experts, evenly)
        found = np.full(self.experts, (1 - self.affinity) * evenly)
        found[self.favours(key)] += self.affinity * self.chosen / self.favoured
        return found


@dataclass(slots=True)
class Experts:
    """What batches touch, worked out once for each."""

    affinity: Affinity
    _missed: dict[str | None, Chances] = field(default_factory=dict)
    """By key: for each expert the logarithm of the probability that a token does not choose it."""
    _known: dict[frozenset[tuple[str | None, int]], float] = field(default_factory=dict)

    def touched(self, tokens: Mapping[str | None, int]) -> float:
        """Experts that a step with so many tokens of each key touches, on average. Counts are above zero."""
        batch = frozenset(tokens.items())
        found = self._known.get(batch)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[batch] = self._count(tokens)
        return found

    def share(self, tokens: Mapping[str | None, int]) -> float:
        """The same as a share of all experts."""
        return self.touched(tokens) / self.affinity.experts

    def _count(self, tokens: Mapping[str | None, int]) -> float:
        if not tokens:
            return 0.0
        rows = np.array([self._log_missed(key) for key in tokens])
        counts = np.array(list(tokens.values()), dtype=np.float64)
        return float(self.affinity.experts - np.exp(counts @ rows).sum())

    def _log_missed(self, key: str | None) -> Chances:
        found = self._missed.get(key)
        if found is None:
            with np.errstate(divide="ignore"):  # what is always chosen is never missed
                found = self._missed[key] = np.log1p(-np.minimum(1.0, self.affinity.chances(key)))
        return found
