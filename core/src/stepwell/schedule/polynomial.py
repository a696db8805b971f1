"""The polynomial clock: what steps take by two fitted polynomials, the default of NVIDIA's serving simulators.

AISimulate, and the mocker of Dynamo that it grew from, take these constants where no device was profiled; by them a
replay here and one there can be compared. In milliseconds, with T prompt tokens that a step computes, and p the share
of the device's token capacity that holds the context of the requests that decode in it:

    prefill = 4.209989e-07 T^2 + 1.518344e-02 T + 16.50142            if T > 0, else 0
    decode  = max(1, -25.74 p^2 + 54.01 p + 5.74)                     if any decodes, else 0
    step    = prefill + decode, and loads from host run beside it, layer by layer, as in `Timing`

Neither looks at the context of prompts, nor at how many requests decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.abc.runner import Row
from stepwell.schedule.timing import Decoding, beside

LAYERS = 36
KV_BYTES = LAYERS * 2 * 8 * 128 * 2
"""Of one token of Qwen3 8B in bfloat16, the model that is simulated there by default: 8 KV heads of 128."""
WEIGHT_BYTES = 16.4e9
LINK = 32e9
"""Bytes a second between host and device, one way; the polynomials say nothing of it."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """One device that holds `capacity` tokens."""

    capacity: int
    link: float = LINK
    layers: int = LAYERS

    def step(self, rows: Sequence[Row], load_bytes: float = 0.0, experts: float | None = None) -> float:
        """Seconds that one step takes."""
        tokens = context = 0
        for row in rows:
            if row.tokens is None:
                context += row.start + row.count
            else:
                tokens += row.count
        busy = (_prefill_ms(tokens) + self.decode_ms(context)) / 1e3
        return beside(busy, load_bytes / self.link, self.layers) if load_bytes else busy

    def decode(self, starts: Sequence[int], experts: float | None = None) -> Decoding:
        """Requests that decode together; `starts`: the position of each one's next token."""
        return _Steady(self, sum(starts) + len(starts), len(starts))

    def decode_ms(self, context: float) -> float:
        """Milliseconds for requests that decode with so many tokens of context together."""
        if not context:
            return 0.0
        share = min(1.0, context / self.capacity)
        return max(1.0, -25.74 * share * share + 54.01 * share + 5.74)


class _Steady(Decoding):
    """Each step is counted as the one in the middle."""

    def __init__(self, clock: Polynomial, context: int, rows: int) -> None:
        self._clock, self._context, self._rows = clock, context, rows

    def seconds(self, steps: int) -> float:
        return steps * self._clock.decode_ms(self._context + self._rows * (steps - 1) / 2) / 1e3


def _prefill_ms(tokens: int) -> float:
    return 4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142 if tokens else 0.0
