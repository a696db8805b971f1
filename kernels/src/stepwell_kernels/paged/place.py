"""Where a layer's K and V lie: its pages, and which of them belong to whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tables:
    """The page tables of one attention group, for all slots; kernels read them when they run."""

    pages: torch.Tensor
    """int32 [slots + 1, width]: by slot and index of a page; -1 where a window left it behind. The last line is the
    idle slot's: all -1."""
    page_size: int
    window: int | None = None
    """Tokens of history that a query sees beside itself."""
    chunk: int | None = None
    """A query sees the tokens since a multiple of it."""

    def __post_init__(self) -> None:
        """Refuse what no kernel could read."""
        if self.window is not None and self.chunk is not None:
            raise ValueError("a layer sees a window or a chunk, not both")
        if self.pages.dtype != torch.int32 or self.pages.dim() != 2 or self.pages.stride(1) != 1:
            raise ValueError("page tables are int32, [slots + 1, width], with each line in one piece")

    @property
    def idle(self) -> int:
        """The slot of padding."""
        return self.pages.shape[0] - 1

    @property
    def sees(self) -> tuple[str, int]:
        """Kind of sight ("all", "window" or "chunk") and its tokens."""
        if self.window is not None:
            return "window", self.window
        return ("all", 0) if self.chunk is None else ("chunk", self.chunk)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step's K and V of one layer are written."""

    keys: torch.Tensor
    """[pages, page_size, kv_heads, dim]."""
    values: torch.Tensor
    """[pages, page_size, kv_heads, their own dim]."""
    tables: Tables
    token_slots: torch.Tensor
    """int32 [tokens]: the slot of each token of the flat batch; the idle slot for padding, which writes nothing."""
    positions: torch.Tensor
    """int64 [tokens]: of each token in its own row."""
