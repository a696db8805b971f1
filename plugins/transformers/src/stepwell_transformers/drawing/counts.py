"""Which tokens a request has had, on the device, for those whose penalties look at them."""

from __future__ import annotations

import numpy as np
import torch

PROMPT = 1 << 30
"""Set where a token is in the prompt; below it, how often it is in the answer."""
FIRST = 4
"""Rows that are made at first; twice as many whenever they are taken."""


class Counts:
    """Rows [vocab] of int32, made as they are asked for: most requests need none."""

    def __init__(self, device: torch.device, vocab: int) -> None:
        self._vocab = vocab
        self.table = torch.zeros((1, vocab), dtype=torch.int32, device=device)
        """[rows, vocab]."""
        self._free: list[int] = [0]

    def take(self, history: bytes, prompt: int) -> int:
        """A row for a request whose first `prompt` tokens of `history` (int32 bytes) are no answer."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        tokens = np.frombuffer(history, dtype=np.int32)
        line = np.bincount(tokens[prompt:], minlength=self._vocab).astype(np.int32)
        line[tokens[:prompt]] |= PROMPT
        staged = torch.empty(self._vocab, dtype=torch.int32, pin_memory=self.table.device.type == "cuda")
        staged.numpy()[:] = line
        self.table[row].copy_(staged, non_blocking=True)
        return row

    def give(self, row: int) -> None:
        """A row's request is gone; what is drawn for it is enqueued already. -1: it had none."""
        if row >= 0:
            self._free.append(row)

    def _grow(self) -> None:
        """Steps that are under way read the old table, whose memory goes to nobody before the stream is past them."""
        rows = self.table.shape[0]
        grown = self.table.new_empty((max(FIRST, 2 * rows), self._vocab))
        grown[:rows].copy_(self.table)
        self.table = grown
        self._free += range(grown.shape[0] - 1, rows - 1, -1)
