"""Paged attention for a ragged batch: some rows extend a prompt by many tokens, others decode one.

Each row's K and V are written into its pages first, then every query attends to its row's pages up to itself: to all of
them, to a window, or to its own chunk. Decode rows of similar length run together over gathered pages; a prompt's rows
run block by block. Queries of one KV head are handled as one block, so K and V are never repeated. Everything that all
layers of a group share is laid out once, in `Batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import embedding, pad, scaled_dot_product_attention

from stepwell_kernels.pool import within
from stepwell_kernels.scores import Scores, attend, attend_with_sinks

PADDING, SLACK = 1.25, 64
"""Decode rows share a gather while its padded length stays within this factor, and so many tokens, of their own."""
BLOCK = 1024
"""Most queries of a prompt that share a mask, so that masks stay small beside long histories."""
WINDOW_BLOCK = 128
"""Least queries of a prompt's block under a window: blocks are as long as the window, so that half of what they read is
seen, and never so short that there are too many."""

ALIGNED = 64
"""Blocks are multiples of it: a window is one less than a round number, and an odd block slower."""


@dataclass(frozen=True, slots=True)
class RaggedRow:
    """One request's share of a batch."""

    start: int
    """Tokens before it."""
    count: int
    """Tokens it adds."""
    pages: npt.NDArray[np.int32]
    """Its page table, for at least start + count tokens; -1 where a window has left a page behind."""


@dataclass(frozen=True)
class _Prompt:
    span: slice
    """Of the flat batch."""
    pages: torch.Tensor
    """[1, pages]."""
    tokens: int
    """How many tokens of those pages are read."""
    mask: torch.Tensor | None
    """[queries, tokens]: true where a query sees a token; None: plainly causal."""

    @cached_property
    def seen(self) -> torch.Tensor:
        """The mask, also where it is plainly causal."""
        if self.mask is not None:
            return self.mask
        places = torch.arange(self.tokens, device=self.pages.device)
        return places[None, :] <= places[:, None]

    @cached_property
    def seen_and_sink(self) -> torch.Tensor:
        """[queries, tokens + 1]: a sink behind the tokens, which every query sees."""
        return pad(self.seen, (0, 1), value=True)


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
        chunk: int | None = None,
    ) -> None:
        """`window`: tokens of history that a query sees beside itself; `chunk`: it sees those since a multiple of it.

        Neither: it sees all. Raises ValueError where a row's table lacks a page that it writes or reads.
        """
        if window is not None and chunk is not None:
            raise ValueError("a layer sees a window or a chunk, not both")
        self._page_size, self._device, self._window, self._chunk = page_size, device, window, chunk
        if window is not None:
            block = min(block, max(-(-window // ALIGNED) * ALIGNED, WINDOW_BLOCK))
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

    @property
    def _all(self) -> bool:
        """Whether a query sees its whole history."""
        return self._window is None and self._chunk is None

    def _first(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """First token that each of the queries at `places` sees."""
        if self._window is not None:
            return np.maximum(places - self._window, 0)
        if self._chunk is not None:
            return places // self._chunk * self._chunk
        return np.zeros_like(places)

    def _low(self, place: int) -> int:
        """First token, floored to a page, that a query at `place` may see."""
        if self._all:
            return 0
        return int(self._first(np.array(place))) // self._page_size * self._page_size

    def _history(self, row: RaggedRow, low: int, end: int) -> npt.NDArray[np.int64]:
        """Pages that hold the tokens [low, end)."""
        return self._present(row, np.arange(low // self._page_size, -(-end // self._page_size)))

    def _prompt(self, first: int, row: RaggedRow, at: int, count: int) -> _Prompt:
        start = row.start + at
        low, end = self._low(start), start + count
        pages = torch.from_numpy(self._history(row, low, end))[None].to(self._device)
        mask = None
        if start or not self._all:
            seen = torch.arange(low, end, device=self._device)[None, :]
            own = np.arange(start, end)
            mask = seen <= torch.from_numpy(own).to(self._device)[:, None]
            if not self._all:
                mask &= seen >= torch.from_numpy(self._first(own)).to(self._device)[:, None]
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
        starts = np.array([row.start for _, row in rows])
        lows = np.array([self._low(row.start) for _, row in rows])
        seen = places <= (starts - lows)[:, None]
        if not self._all:
            seen &= places >= (self._first(starts) - lows)[:, None]
        mask = torch.from_numpy(seen).to(self._device)[:, None, None, :]
        index = torch.tensor([at for at, _ in rows], dtype=torch.int64, device=self._device)
        return _Decode(index, torch.from_numpy(table).to(self._device), mask)


def write_pages(pages: torch.Tensor, values: torch.Tensor, batch: Batch) -> None:
    """Write a batch's `values` [tokens, kv_heads, head_dim] into a layer's [pages, page_size, kv_heads, head_dim]."""
    pages.view(-1, *pages.shape[2:]).index_copy_(0, batch.slots, values)


def paged_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: Batch,
    scale: float,
    sinks: torch.Tensor | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend from `query` [tokens, heads, key_dim] to a layer's pages, which hold the batch's own tokens already.

    `keys`, `values`: [pages, page_size, kv_heads, their own dim], or values as a view of the keys' first numbers; heads
    is a multiple of kv_heads. `sinks`: [heads], in every query's softmax the score of one more token, whose value is
    zero. `softcap`: scores become softcap * tanh(score / softcap). Answers [tokens, heads, value_dim].
    """
    heads = query.shape[1]
    scores = None
    if sinks is not None or softcap is not None:
        scores = Scores(scale, None if sinks is None else sinks.view(keys.shape[2], -1), softcap)
    out = torch.empty((query.shape[0], heads, values.shape[3]), dtype=query.dtype, device=query.device)
    for decode in batch.decodes:
        out[decode.rows] = _attend_decode(query[decode.rows], keys, values, decode, scale, scores)
    for prompt in batch.prompts:
        out[prompt.span] = _attend_prompt(query[prompt.span], keys, values, prompt, scale, scores)
    return out


def _attend_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    decode: _Decode,
    scale: float,
    scores: Scores | None,
) -> torch.Tensor:
    rows, heads, dim = query.shape
    k, v = _both(keys, values, decode.pages)
    grouped = query.reshape(rows, keys.shape[2], -1, dim)
    if scores is None:
        found = scaled_dot_product_attention(grouped, k, v, attn_mask=decode.mask, scale=scale)
    else:
        found = attend(grouped[:, :, :, None], k, v, decode.mask[:, :, None], scores)
    return found[..., : values.shape[3]].reshape(rows, heads, -1)


def _attend_prompt(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    prompt: _Prompt,
    scale: float,
    scores: Scores | None,
) -> torch.Tensor:
    count, heads, dim = query.shape
    groups = heads // keys.shape[2]
    grouped = query.reshape(count, -1, groups, dim).permute(1, 2, 0, 3)
    k, v = (side[:, :, : prompt.tokens] for side in _both(keys, values, prompt.pages))
    if scores is None:
        mask = prompt.mask
        wide = (side[0, :, None].expand(-1, groups, -1, -1) for side in (k, v))
        found = scaled_dot_product_attention(grouped, *wide, attn_mask=mask, is_causal=mask is None, scale=scale)
    elif scores.softcap is None and scores.sinks is not None:
        found = attend_with_sinks(grouped, k[0], v[0], prompt.seen_and_sink, scale, scores.sinks)
    else:
        found = attend(grouped[None], k, v, prompt.seen, scores)[0]
    return found[..., : values.shape[3]].permute(2, 0, 1, 3).reshape(count, heads, -1)


def _both(keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of the pages in a table; where V is a part of K the whole of K stands for it, for answers to be cut.

    That is twice as fast on CPU as values that are narrower than keys, which torch has no fused attention for.
    """
    k = _gather(keys, table)
    return k, k if within(values, keys) else _gather(values, table)


def _gather(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[rows, kv_heads, tokens, head_dim] of the pages in a table [rows, pages].

    An embedding look-up, since on CPU it copies whole rows and `index_select` does not.
    """
    found = embedding(table, pages.view(pages.shape[0], -1))
    return found.view(table.shape[0], -1, *pages.shape[2:]).transpose(1, 2)
