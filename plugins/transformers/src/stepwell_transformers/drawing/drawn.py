"""What a step sampled, on its way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepwell import TokenLogprob


@dataclass(frozen=True, slots=True)
class Odds:
    """Log probabilities of the rows that asked, on the device."""

    rows: Sequence[int]
    tops: Sequence[int]
    """How many of the most likely tokens each of them wants."""
    own: torch.Tensor
    """[rows]: of what was sampled."""
    values: torch.Tensor
    """[rows, n]: of the most likely, descending."""
    tokens: torch.Tensor


class Drawn:
    """Sampled tokens: on the device at once, and on the host once the stream is past what it has when this is made."""

    def __init__(self, tokens: torch.Tensor, odds: Odds | None = None) -> None:
        self.tokens = tokens
        """int64 [rows], on the device."""
        self._odds = odds
        self._host = _sent(tokens)
        self._own, self._values, self._tops = (
            (None, None, None) if odds is None else (_sent(odds.own), _sent(odds.values), _sent(odds.tokens))
        )

    def read(self) -> list[int]:
        """The tokens, a row each, once they are on the host."""
        found: list[int] = self._host.tolist()
        return found

    def logprobs(self) -> list[TokenLogprob | None]:
        """Log probabilities of the rows that asked for them, once they are on the host."""
        found: list[TokenLogprob | None] = [None] * len(self._host)
        if self._odds is None or self._own is None or self._values is None or self._tops is None:
            return found
        lines = zip(self._own.tolist(), self._tops.tolist(), self._values.tolist(), strict=True)
        for row, top, (own, tokens, values) in zip(self._odds.rows, self._odds.tops, lines, strict=True):
            found[row] = TokenLogprob(own, tuple(zip(tokens[:top], values[:top], strict=True)))
        return found


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, under way: what is sent may be written over by the step that comes."""
    if tensor.device.type != "cuda":
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
