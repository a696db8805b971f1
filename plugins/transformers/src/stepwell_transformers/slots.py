"""What the runner keeps of each request between steps: its page tables, its tokens, how it is sampled."""

from __future__ import annotations

import secrets
from array import array

import numpy as np
import numpy.typing as npt

from stepwell import SlotOpen, TableEdit
from stepwell_transformers.sampling import Draw


class Slot:
    """One request."""

    def __init__(self, opened: SlotOpen, groups: int) -> None:
        self._sampling = opened.sampling
        seed = opened.sampling.seed
        self._seed = secrets.randbits(63) if seed is None else seed
        self._history = array("i", opened.prompt)
        self._prompt = len(self._history) - opened.generated
        self._tables: list[npt.NDArray[np.int32]] = [np.full(16, -1, dtype=np.int32) for _ in range(groups)]

    def edit(self, edit: TableEdit) -> None:
        """Change a run of a group's page table."""
        table, end = self._tables[edit.group], edit.first + len(edit.pages)
        if end > len(table):
            grown = np.full(max(end, 2 * len(table)), -1, dtype=np.int32)
            grown[: len(table)] = table
            self._tables[edit.group] = table = grown
        table[edit.first : end] = edit.pages

    def table(self, group: int) -> npt.NDArray[np.int32]:
        """Page ids of a group by page index."""
        return self._tables[group]

    @property
    def last(self) -> int:
        """The token that was sampled last."""
        return self._history[-1]

    def draw(self) -> Draw:
        """How its next token is chosen."""
        generated = len(self._history) - self._prompt
        return Draw(self._sampling, self._seed, generated, self._history, self._prompt)

    def sampled(self, token: int) -> None:
        """Remember the token that was chosen."""
        self._history.append(token)
