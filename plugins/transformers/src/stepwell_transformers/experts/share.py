"""A batch that every rank has, of which each takes its share to the experts, and gets everything back."""

from __future__ import annotations

import torch
from torch.nn import functional

from stepwell_kernels.collective import Group


class Share:
    """Shares lie behind each other in the order of ranks, all of a length but the last ones, which may be empty."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def most(self, tokens: int) -> int:
        """The longest share of so many tokens."""
        return -(-tokens // self._group.size)

    def span(self, tokens: int) -> tuple[int, int]:
        """Where this rank's begins and ends."""
        step = self.most(tokens)
        return min(tokens, self._group.rank * step), min(tokens, (self._group.rank + 1) * step)

    def whole(self, own: torch.Tensor, tokens: int) -> torch.Tensor:
        """[tokens, hidden]: what all ranks have, of each its share."""
        if self._group.size == 1 or not tokens:
            return own
        step, hidden = self.most(tokens), own.shape[1]
        if len(own) < step:
            own = functional.pad(own, (0, 0, 0, step - len(own)))
        everything = own.new_empty((self._group.size, step, hidden))
        self._group.gather(everything, own.contiguous()).wait()
        return everything.view(-1, hidden)[:tokens]
