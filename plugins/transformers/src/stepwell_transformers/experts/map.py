"""From the experts that a router chose to the slots that tokens are sent to."""

from __future__ import annotations

import numpy as np
import torch

from stepwell_transformers.experts.slots import Row


class SlotMap:
    """A layer's replicas of each expert. Its tensors never move, so that a captured graph sees what is written."""

    def __init__(self, row: Row, experts: int, device: torch.device) -> None:
        self.row = row
        self._copies = torch.zeros(experts, dtype=torch.int64, device=device)
        self._slots = torch.zeros((experts, len(row) - experts + 1), dtype=torch.int64, device=device)
        self.write(row)

    def write(self, row: Row) -> None:
        """Put other experts into the slots, from the next step on that this stream runs.

        ValueError where an expert would stand nowhere, or the number of slots is another.
        """
        experts, most = self._slots.shape
        counts = np.bincount(row, minlength=experts)
        if len(row) != len(self.row) or len(counts) != experts or counts.min() < 1:
            raise ValueError(f"{len(row)} slots for {experts} experts, each of which stands in one at least: {row}")
        table = np.zeros((experts, most), np.int64)
        order = np.argsort(row, kind="stable")
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[row[order], within] = order
        self._copies.copy_(torch.from_numpy(counts))
        self._slots.copy_(torch.from_numpy(table))
        self.row = row

    def slots(self, experts: torch.Tensor, first: int) -> torch.Tensor:
        """A slot for each of `experts` [tokens, top_k]. Token after token takes an expert's replicas in turn.

        `first`: the number of the first token in the batch, so that ranks with a part of it each go on from another.
        """
        if self._slots.shape[1] == 1:
            return self._slots[:, 0][experts]
        numbers = torch.arange(first, first + len(experts), device=experts.device)[:, None]
        return self._slots[experts, numbers % self._copies[experts]]
