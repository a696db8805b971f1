"""Attention over pages by another library, for the layers that it can do. Provisional.

A runner asks for runs before it serves: one for each kind of layers and of steps. A step is planned once, on the host,
and then run layer by layer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from stepwell.types import Ids, Need

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """What layers ask of attention; those that ask the same share their runs."""

    heads: int
    kv_heads: int
    """A divisor of `heads`."""
    key_dim: int
    value_dim: int
    page_size: int
    """Tokens a page."""
    dtype: str
    """Of queries, keys and values, such as `bfloat16`."""
    need: Need
    """What a query sees beside itself: everything before it, a window, or its chunk."""
    scale: float
    """Scores are products of queries and keys times it."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: bool = False
    """Whether each head has the score of one more token, whose value is zero."""


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Rows of a step as layers of one need see them: pages that no query sees are left out, in whole.

    tokens  | seen, or in a page with what is seen |  counts: the row's own |
    pages   | 7         | 3         | 9         | 4         | 12        |
    """

    counts: Ids
    """[rows]: queries of each; one after another, they are the flat batch. At least 1."""
    tokens: Ids
    """[rows]: tokens in each one's pages up to its last query, which is at the end. At least `counts`."""
    pages: Ids
    """Page ids, row after row, each as many as its tokens fill or begin."""


class AttentionRun(ABC, Generic[T]):
    """One kind of steps of one kind of layers; plans and runs come in the order of one stream."""

    @abstractmethod
    def plan(self, rows: AttentionRows) -> None:
        """What `run` computes from here on; enqueued on the current stream. `rows` may be written over afterwards."""

    @abstractmethod
    def run(self, query: T, keys: T, values: T, out: T, sinks: T | None = None) -> None:
        """Attend from `query` [tokens, heads, key_dim] to a layer's pages, into `out` [tokens, heads, value_dim].

        `keys`, `values`: [pages, page_size, kv_heads, their dim]; they hold the step's own tokens already. `sinks`:
        float32 [heads], where the layers have them. Enqueued on the current stream; waits for nothing.
        """


class PagedAttention(ABC, Generic[T]):
    """Makes runs. Generic over the tensor type, so that core needs no torch.

    An offer with Capability.GRAPH_SAFE makes runs of decodes that may be captured in a graph: `plan` is then called
    before each replay, and what is replayed computes what was planned last.
    """

    @abstractmethod
    def lacks(self, layers: AttentionLayers) -> str | None:
        """What of these layers it cannot do, as in "head dims of 80"; None: it does them, in every step."""

    @abstractmethod
    def decodes(self, layers: AttentionLayers, graph: tuple[int, int] | None = None) -> AttentionRun[T]:
        """For rows of one token each.

        `graph`: exactly so many rows in every plan, at most so many pages, and what `run` enqueues may be captured.
        """

    @abstractmethod
    def prompts(self, layers: AttentionLayers) -> AttentionRun[T]:
        """For rows of any number of tokens."""

    def close(self) -> None:
        """Release everything; the last call."""
