"""Paged attention for a ragged batch: some rows extend a prompt by many tokens, others decode one.

Each row's K and V are written into its pages first, then every query attends to its row's pages up to itself. Decode
rows of similar length run together over gathered pages; a prompt's rows run one by one. Queries of one KV head are
handled as one block, so K and V are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

PADDING = 1.25
"""Decode rows share a batch while its padded length stays within this factor of their own."""


@dataclass(frozen=True, slots=True)
class RaggedRow:
    """One request's share of a batch."""

    start: int
    """Tokens before it."""
    count: int
    """Tokens it adds."""
    pages: npt.NDArray[np.int32]
    """Its page table, for at least start + count tokens."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    at: int
    start: int
    count: int
    pages: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Decode:
    rows: torch.Tensor
    """Indices into the flat batch."""
    pages: torch.Tensor
    """[rows, pages], padded with page 0."""
    mask: torch.Tensor
    """[rows, 1, 1, tokens]: true where a token is the row's own."""


class Batch:
    """Rows laid out for one step, once for all layers: where tokens are written, and which pages are read together."""

    def __init__(
        self, rows: Sequence[RaggedRow], page_size: int, device: torch.device | str, window: int | None = None
    ) -> None:
        """`window`: tokens of history that a query sees beside itself; None: all."""
        self.page_size = page_size
        self.window = window
        self.tokens = sum(row.count for row in rows)
        self._device = device
        starts = np.cumsum([0, *(row.count for row in rows)])
        slots = [_slots(row, page_size) for row in rows]
        flat = np.concatenate(slots) if slots else np.empty(0, np.int64)
        self.slots = torch.from_numpy(flat).to(device)
        """Flat token slots to write, one a token of the batch."""
        self.prompts = [
            _Prompt(int(starts[i]), row.start, row.count, self._ids(row.pages[: _pages(row, page_size)]))
            for i, row in enumerate(rows)
            if row.count > 1
        ]
        self.decodes = self._together([(int(starts[i]), row) for i, row in enumerate(rows) if row.count == 1])

    def _ids(self, pages: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(np.maximum(pages, 0).astype(np.int64)).to(self._device)

    def _together(self, rows: list[tuple[int, RaggedRow]]) -> list[_Decode]:
        rows = sorted(rows, key=lambda pair: -pair[1].start)
        batches: list[_Decode] = []
        while rows:
            longest = rows[0][1].start + 1
            fit = next((i for i, (_, row) in enumerate(rows) if (row.start + 1) * PADDING < longest), len(rows))
            batches.append(self._decode(rows[:fit]))
            rows = rows[fit:]
        return batches

    def _decode(self, rows: list[tuple[int, RaggedRow]]) -> _Decode:
        ends = np.array([row.start + 1 for _, row in rows])
        width = -(-int(ends.max()) // self.page_size)
        table = np.zeros((len(rows), width), dtype=np.int64)
        for i, (_, row) in enumerate(rows):
            own = row.pages[: -(-(row.start + 1) // self.page_size)]
            table[i, : len(own)] = np.maximum(own, 0)
        places = np.arange(width * self.page_size)
        seen = places[None, :] < ends[:, None]
        if self.window is not None:
            seen &= places[None, :] >= ends[:, None] - 1 - self.window
        mask = torch.from_numpy(seen).to(self._device)[:, None, None, :]
        index = torch.tensor([at for at, _ in rows], dtype=torch.int64, device=self._device)
        return _Decode(index, torch.from_numpy(table).to(self._device), mask)


def _pages(row: RaggedRow, page_size: int) -> int:
    return -(-(row.start + row.count) // page_size)


def _slots(row: RaggedRow, page_size: int) -> npt.NDArray[np.int64]:
    places = np.arange(row.start, row.start + row.count)
    return row.pages[places // page_size].astype(np.int64) * page_size + places % page_size


def write_pages(pages: torch.Tensor, values: torch.Tensor, batch: Batch) -> None:
    """Write a batch's `values` [tokens, kv_heads, head_dim] into a layer's [pages, page_size, kv_heads, head_dim]."""
    pages.view(-1, *pages.shape[2:]).index_copy_(0, batch.slots, values)


def paged_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: Batch, scale: float
) -> torch.Tensor:
    """Attend from `query` [tokens, heads, head_dim] to a layer's pages, which hold the batch's own tokens already.

    `keys`, `values`: [pages, page_size, kv_heads, head_dim]; heads is a multiple of kv_heads. Answers [tokens, heads,
    head_dim].
    """
    out = torch.empty_like(query)
    for decode in batch.decodes:
        out[decode.rows] = _attend_decode(query[decode.rows], keys, values, decode, scale)
    for prompt in batch.prompts:
        span = slice(prompt.at, prompt.at + prompt.count)
        out[span] = _attend_prompt(query[span], keys, values, prompt, batch, scale)
    return out


def _attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decode: _Decode, scale: float
) -> torch.Tensor:
    rows, heads, dim = query.shape
    kv_heads = keys.shape[2]
    k, v = (_gather(pages, decode.pages) for pages in (keys, values))
    grouped = query.view(rows, kv_heads, heads // kv_heads, dim)
    found = scaled_dot_product_attention(grouped, k, v, attn_mask=decode.mask, scale=scale)
    return found.reshape(rows, heads, dim)


def _gather(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[rows, kv_heads, tokens, head_dim] of the pages in a table [rows, pages]."""
    rows = table.shape[0]
    found = pages.index_select(0, table.view(-1))
    return found.view(rows, -1, *pages.shape[2:]).transpose(1, 2)


def _attend_prompt(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, prompt: _Prompt, batch: Batch, scale: float
) -> torch.Tensor:
    count, heads, dim = query.shape
    kv_heads, end = keys.shape[2], prompt.start + prompt.count
    k, v = (_gather(pages, prompt.pages[None])[0, :, :end] for pages in (keys, values))
    grouped = query.view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    k, v = (side[:, None].expand(-1, heads // kv_heads, -1, -1) for side in (k, v))
    mask = None
    if prompt.start or batch.window is not None:
        mask = _causal(prompt, batch.window, query.device)
    found = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    return found.permute(2, 0, 1, 3).reshape(count, heads, dim)


def _causal(prompt: _Prompt, window: int | None, device: torch.device) -> torch.Tensor:
    places = torch.arange(prompt.start + prompt.count, device=device)
    own = places[prompt.start :, None]
    mask = places[None, :] <= own
    return mask if window is None else mask & (places[None, :] >= own - window)
