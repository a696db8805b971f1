"""The all-to-all of expert parallelism: tokens to their experts and back. Provisional."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Dispatched(Generic[T]):
    """Tokens that arrived on this rank, sorted by local expert."""

    tokens: T
    """[received, hidden]"""
    counts: T
    """[local_experts]: how many of `tokens` each local expert has, in order."""
    state: Any
    """What the backend needs to send the outputs back; opaque."""


class Dispatcher(ABC, Generic[T]):
    """Sends tokens to experts on other ranks and sums what comes back.

    Generic over the tensor type, so that core needs no torch. Every rank of the group makes the same calls in the same
    order, also with zero tokens. A start may return before the data moved; its finish waits for it. Between a start and
    its finish the tensors belong to the backend. Modes (normal, low latency) are offers of their own.
    """

    @abstractmethod
    def dispatch_start(self, tokens: T, experts: T) -> Any:
        """Send `tokens` [n, hidden] to `experts` [n, top_k] (global ids, -1: nowhere). Returns a handle."""

    @abstractmethod
    def dispatch_finish(self, handle: Any) -> Dispatched[T]:
        """Wait for what the others sent here. A handle is finished exactly once."""

    @abstractmethod
    def combine_start(self, outputs: T, dispatched: Dispatched[T], weights: T) -> Any:
        """Send the experts' `outputs` [received, hidden] back; `weights` [n, top_k] are this rank's own."""

    @abstractmethod
    def combine_finish(self, handle: Any) -> T:
        """The weighted sums [n, hidden] of this rank's tokens; a token without experts gets zeros."""

    def close(self) -> None:
        """Release buffers and groups; the last call."""
