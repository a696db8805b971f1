"""Paged attention for a ragged batch: some rows extend a prompt by many tokens, others decode one.

Each row's K and V are written into its pages first, then every query attends to its row's pages up to itself. Decode
rows of similar length run together over gathered pages; a prompt's rows run block by block. Queries of one KV head are
handled as one block, so K and V are never repeated. Everything that all layers share is laid out once, in `Batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import embedding, scaled_dot_product_attention

PADDING, SLACK = 1.25, 64
"""Decode rows share a gather while its padded length stays within this factor, and so many tokens, of their own."""
BLOCK = 1024
"""Most queries of a prompt that share a mask, so that masks stay small beside long histories."""


@dataclass(frozen=True, slots=True)
class RaggedRow:
    """One request's share of a batch."""

    start: int
    """Tokens before it."""
    count: int
    """Tokens it adds."""
    pages: npt.NDArray[np.int32]
    """Its page table, for at least start + count tokens; -1 where a window has left a page behind."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    span: slice
    """Of the flat batch."""
    pages: torch.Tensor
    """[1, pages]."""
    tokens: int
    """How many tokens of those pages are read."""
    mask: torch.Tensor | None
    """[queries, tokens]: true where a query sees a token; None: plainly causal."""


@dataclass(frozen=True, slots=True)
class _Decode:
    rows: torch.Tensor
    """Indices into the flat batch."""
    pages: torch.Tensor
    """[rows, pages]; a shorter row repeats a page of its own, so that it never reads a stranger's."""
    mask: torch.Tensor
    """[rows, 1, 1, tokens]: true where a token is the row's own."""


class Batch:
    """Rows laid out for one step, once for all layers: where tokens are written, and which pages are read together."""

    def __init__(
        self,
        rows: Sequence[RaggedRow],
        page_size: int,
        device: torch.device | str,
        window: int | None = None,
        block: int = BLOCK,
    ) -> None:
        """`window`: tokens of history that a query sees beside itself; None: all.

        Raises ValueError where a row's table lacks a page that it writes or reads.
        """
        self._page_size, self._device, self._window = page_size, device, window
        self.tokens = sum(row.count for row in rows)
        starts = np.cumsum([0, *(row.count for row in rows)]).tolist()
        flat = np.concatenate([self._slots(row) for row in rows]) if rows else np.empty(0, np.int64)
        self.slots = torch.from_numpy(flat).to(device)
        """Flat token slots to write, one a token of the batch."""
        self.prompts = [
            self._prompt(starts[i], row, at, min(block, row.count - at))
            for i, row in enumerate(rows)
            if row.count > 1
            for at in range(0, row.count, block)
        ]
        self.decodes = self._together([(starts[i], row) for i, row in enumerate(rows) if row.count == 1])

    def _slots(self, row: RaggedRow) -> npt.NDArray[np.int64]:
        places = np.arange(row.start, row.start + row.count)
        return self._present(row, places // self._page_size) * self._page_size + places % self._page_size

    def _present(self, row: RaggedRow, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Page ids at `index` of a row's table."""
        if index.size and index[-1] >= len(row.pages):
            raise ValueError(f"a row of {row.start} + {row.count} tokens has a table of {len(row.pages)} pages")
        pages = row.pages[index].astype(np.int64)
        if pages.size and pages.min() < 0:
            raise ValueError(f"a row of {row.start} + {row.count} tokens needs a page that its table lacks")
        return pages

    def _low(self, place: int) -> int:
        """First token, floored to a page, that a query at `place` may see."""
        if self._window is None:
            return 0
        return max(0, place - self._window) // self._page_size * self._page_size

    def _history(self, row: RaggedRow, low: int, end: int) -> npt.NDArray[np.int64]:
        """Pages that hold the tokens [low, end)."""
        return self._present(row, np.arange(low // self._page_size, -(-end // self._page_size)))

    def _prompt(self, first: int, row: RaggedRow, at: int, count: int) -> _Prompt:
        start = row.start + at
        low, end = self._low(start), start + count
        pages = torch.from_numpy(self._history(row, low, end))[None].to(self._device)
        mask = None
        if low or start or self._window is not None:
            seen = torch.arange(low, end, device=self._device)[None, :]
            own = torch.arange(start, end, device=self._device)[:, None]
            mask = seen <= own
            if self._window is not None:
                mask &= seen >= own - self._window
        return _Prompt(slice(first + at, first + at + count), pages, end - low, mask)

    def _together(self, rows: list[tuple[int, RaggedRow]]) -> list[_Decode]:
        """Longest first: a row starts a gather of its own where sharing would pad it too much."""
        lengths = {at: row.start + 1 - self._low(row.start) for at, row in rows}
        rows = sorted(rows, key=lambda pair: -lengths[pair[0]])
        groups: list[list[tuple[int, RaggedRow]]] = []
        for at, row in rows:
            if groups and lengths[groups[-1][0][0]] <= (lengths[at] + SLACK) * PADDING:
                groups[-1].append((at, row))
            else:
                groups.append([(at, row)])
        return [self._decode(group) for group in groups]

    def _decode(self, rows: list[tuple[int, RaggedRow]]) -> _Decode:
        own = [self._history(row, self._low(row.start), row.start + 1) for _, row in rows]
        width = max(len(pages) for pages in own)
        table = np.stack([np.pad(pages, (0, width - len(pages)), mode="edge") for pages in own])
        places = np.arange(width * self._page_size)[None, :]
        ends = np.array([row.start - self._low(row.start) for _, row in rows])[:, None]
        seen = places <= ends
        if self._window is not None:
            seen &= places >= ends - self._window
        mask = torch.from_numpy(seen).to(self._device)[:, None, None, :]
        index = torch.tensor([at for at, _ in rows], dtype=torch.int64, device=self._device)
        return _Decode(index, torch.from_numpy(table).to(self._device), mask)


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
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for decode in batch.decodes:
        out[decode.rows] = _attend_decode(query[decode.rows], keys, values, decode, scale)
    for prompt in batch.prompts:
        out[prompt.span] = _attend_prompt(query[prompt.span], keys, values, prompt, scale)
    return out


def _attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decode: _Decode, scale: float
) -> torch.Tensor:
    rows, heads, dim = query.shape
    k, v = _gather(keys, decode.pages), _gather(values, decode.pages)
    grouped = query.reshape(rows, keys.shape[2], -1, dim)
    found = scaled_dot_product_attention(grouped, k, v, attn_mask=decode.mask, scale=scale)
    return found.reshape(rows, heads, dim)


def _attend_prompt(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, prompt: _Prompt, scale: float
) -> torch.Tensor:
    count, heads, dim = query.shape
    groups = heads // keys.shape[2]
    grouped = query.reshape(count, -1, groups, dim).permute(1, 2, 0, 3)
    k, v = (
        _gather(pages, prompt.pages)[0, :, : prompt.tokens][:, None].expand(-1, groups, -1, -1)
        for pages in (keys, values)
    )
    mask = prompt.mask
    found = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    return found.permute(2, 0, 1, 3).reshape(count, heads, dim)


def _gather(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[rows, kv_heads, tokens, head_dim] of the pages in a table [rows, pages].

    An embedding look-up, since on CPU it copies whole rows and `index_select` does not.
    """
    found = embedding(table, pages.view(pages.shape[0], -1))
    return found.view(table.shape[0], -1, *pages.shape[2:]).transpose(1, 2)
