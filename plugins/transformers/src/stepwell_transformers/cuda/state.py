"""What the device knows of slots: the page tables of all groups and each slot's last token, in one buffer.

A plan's edits are packed on the host and scattered into it in one go. The host keeps a mirror of the tables, so that a
row without a page is refused here, where it can be said, and is not found missing by a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from stepwell import AttentionRows, GroupSpec, StepPlan
from stepwell_transformers.drawing.upload import upload


@dataclass(frozen=True, slots=True)
class Edits:
    """Numbers to write, and where; no place twice."""

    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


class SlotState:
    """The lines of `slots` requests, and one more: that of nobody, for padding."""

    def __init__(
        self, groups: Sequence[GroupSpec], page_size: int, slots: int, tokens: int, device: torch.device
    ) -> None:
        """`tokens`: the most that a request may have."""
        self._groups, self._page_size = groups, page_size
        self.idle = slots
        lines, width = slots + 1, -(-tokens // page_size)
        self._bases = [group * lines * width for group in range(len(groups) + 1)]
        self._numbers = torch.full((self._bases[-1] + lines,), -1, dtype=torch.int32, device=device)
        self.tables = [self._numbers[base:][: lines * width].view(lines, width) for base in self._bases[:-1]]
        """int32 [slots + 1, pages of a request], one a group."""
        self.last = self._numbers[self._bases[-1] :].zero_()
        """int32 [slots + 1]: what the next row of one token computes."""
        self._mirror = np.full((len(groups), lines, width), -1, dtype=np.int32)

    @property
    def width(self) -> int:
        """Pages of the longest request."""
        return self._mirror.shape[2]

    def seen(self, group: int, rows: Sequence[tuple[int, int, int]]) -> AttentionRows:
        """What rows (slot, start, count) see of a group's pages, on the host; nobody sees a token of the first page."""
        need, size = self._groups[group].need, self._page_size
        counts, tokens, pages = [], [], []
        for slot, start, count in rows:
            low, end = (0, 1) if slot == self.idle else (need.lo(start) // size, start + count)
            counts.append(count)
            tokens.append(end - low * size)
            own = self._mirror[group, slot, low : -(-end // size)]
            pages.append(np.zeros_like(own) if slot == self.idle else own)
        return AttentionRows(np.array(counts, np.int32), np.array(tokens, np.int32), np.concatenate(pages))

    def edit(self, plan: StepPlan) -> Edits:
        """Take a plan's changes into the mirror; what of them the device must be told.

        A row of one token finds it where the last one sampled would be, so what it brings along is written there.
        """
        places, values = [], []
        for opened in plan.opens:
            self._mirror[:, opened.slot] = -1
            if opened.prompt:
                places.append(np.array([self._bases[-1] + opened.slot]))
                values.append(np.frombuffer(opened.prompt[-4:], np.int32))
        width = self._mirror.shape[2]
        for edit in plan.tables:
            end = edit.first + len(edit.pages)
            if end > width:
                raise ValueError(f"a table of {end} pages does not fit into {width}, which the longest request takes")
            self._mirror[edit.group, edit.slot, edit.first : end] = edit.pages
            base = self._bases[edit.group] + edit.slot * width
            places.append(np.arange(base + edit.first, base + end))
            values.append(edit.pages)
        for row in plan.rows:
            if row.count == 1 and row.tokens is not None:
                places.append(np.array([self._bases[-1] + row.slot]))
                values.append(np.frombuffer(row.tokens, np.int32))
        return _last_of_each(places, values)

    def write(self, edits: Edits) -> None:
        """Enqueue edits on the current stream."""
        if not len(edits.places):
            return
        places, values = upload(self._numbers.device, edits.places, edits.values)
        self._numbers.index_copy_(0, places, values)

    def check(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """ValueError where one of the rows (slot, start, count) lacks a page that it reads or writes."""
        slots, starts, counts = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        ends = -(-(starts + counts) // self._page_size)
        width = self._mirror.shape[2]
        for number, group in enumerate(self._groups):
            good = ends <= width
            good[good] = self._mirror[number, slots[good], ends[good] - 1] >= 0
            for at in np.flatnonzero((counts > 1) & good):
                low = group.need.lo(int(starts[at])) // self._page_size
                good[at] = self._mirror[number, slots[at], low : ends[at]].min() >= 0
            if not good.all():
                bad = int(np.flatnonzero(~good)[0])
                raise ValueError(f"a row of {starts[bad]} + {counts[bad]} tokens needs a page that its table lacks")


def _last_of_each(places: Sequence[npt.NDArray[np.integer]], values: Sequence[npt.NDArray[np.int32]]) -> Edits:
    """What was said last of each place: a scatter keeps no order."""
    if not places:
        return Edits(np.empty(0, np.int64), np.empty(0, np.int32))
    where, what = np.concatenate(places).astype(np.int64), np.concatenate(values)
    kept, first = np.unique(where[::-1], return_index=True)
    return Edits(kept, what[::-1][first])
