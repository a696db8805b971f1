"""Traces of requests with routing keys, drawn from stated distributions.

- *keys*: key i of K is chosen with a probability in proportion to 1 / i ^ zipf, by every request anew;
- *arrivals*: a Poisson process, `rate` requests a second;
- *lengths*: log-normal with the mean that is asked for and a standard deviation of `spread` times that, at least one
  token; a prompt has its key's `shared` tokens and then so many of its own;
- *prefixes*: the whole blocks of a key's shared tokens have the same ids in all of its requests, all others are new;
- *tenants* are as likely as each other, and a share `urgent` of the requests has priority 1.

A line says no more than that: which experts a key's tokens choose follows from its text, as `[replay] affinity` states.
So the file is a plain Mooncake trace with `routing_key` and, where asked, `tenant` and `priority`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.replay.trace import FIRST_OUTPUT_TOKEN, MOONCAKE_BLOCK

LONGEST = 1 << 24
"""Tokens of a prompt or an answer, however wide their distribution is."""

Chances = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Keyed:
    """What such a trace is drawn from."""

    requests: int
    keys: int
    zipf: float = 1.0
    """0: all keys are as likely as each other."""
    rate: float = 10.0
    input: int = 1024
    """Mean tokens of a prompt behind what its key shares."""
    output: int = 128
    """Mean tokens of an answer."""
    spread: float = 0.5
    """Standard deviation of both, over their mean."""
    shared: int = 0
    """Tokens at the start of all prompts of one key."""
    tenants: int = 0
    """0: none is named."""
    urgent: float = 0.0
    block: int = MOONCAKE_BLOCK
    seed: int = 0

    def lines(self) -> Iterator[str]:
        """The trace, line by line: the same for the same seed. ValueError where it needs more ids than there are."""
        dice = np.random.Generator(np.random.PCG64(self.seed))
        count, shared = self.requests, self.shared // self.block
        keys = dice.choice(self.keys, count, p=self.chances())
        at = np.cumsum(dice.exponential(1e3 / self.rate, count))
        lengths = self.shared + _lengths(dice, self.input, self.spread, count)
        outputs = _lengths(dice, self.output, self.spread, count)
        blocks = -(-lengths // self.block)
        starts = self.keys * shared + np.concatenate(([0], np.cumsum(blocks - shared)))
        if starts[-1] >= FIRST_OUTPUT_TOKEN:
            raise ValueError(f"the trace needs {starts[-1]:,} ids of blocks, and {FIRST_OUTPUT_TOKEN:,} is the most")
        tenants = dice.integers(max(1, self.tenants), size=count)
        urgent = dice.random(count) < self.urgent
        return (
            json.dumps(
                {
                    "timestamp": int(at[number]),
                    "input_length": int(lengths[number]),
                    "output_length": int(outputs[number]),
                    "hash_ids": [
                        *range(keys[number] * shared, (keys[number] + 1) * shared),
                        *range(starts[number], starts[number + 1]),
                    ],
                    "routing_key": f"key-{keys[number] + 1}",
                    **({"tenant": f"tenant-{tenants[number] + 1}"} if self.tenants else {}),
                    **({"priority": int(urgent[number])} if self.urgent else {}),
                }
            )
            for number in range(count)
        )

    def chances(self) -> Chances:
        """Of each key, the most frequent first."""
        weights: Chances = np.arange(1, self.keys + 1, dtype=np.float64) ** -self.zipf
        return weights / float(weights.sum())


def _lengths(dice: np.random.Generator, mean: int, spread: float, count: int) -> npt.NDArray[np.int64]:
    """Log-normal with this mean, and a standard deviation of `spread` times that."""
    variance = np.log1p(spread * spread)
    drawn = dice.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)
    return np.clip(np.rint(drawn), 1, LONGEST).astype(np.int64)
