"""The all-to-all of expert parallelism: tokens to the ranks that have their experts, and what became of them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Format(Enum):
    """How tokens lie on the rank that has their experts."""

    SORTED = "sorted"
    """`tokens` [rows, hidden]: a row for each local expert of each token, sorted by local expert; `counts` says how
    many each has. For grouped products."""
    MASKED = "masked"
    """`tokens` [local_experts, capacity, hidden]: the first `counts[e]` rows of each are filled, the others are
    anything. For masked products."""
    ONCE = "once"
    """`tokens` [rows, hidden]: each token once, however many of its experts are here; `experts` and `weights`
    [rows, top_k] say which (numbered from 0 here; -1: elsewhere) and how much each counts. `counts` as for SORTED.
    Outputs are the rows' weighted sums over the experts that are here."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a model's layers exchange; the same on all ranks."""

    experts: int
    """Over all ranks, replicas counted: rank r has the r-th share of them. A multiple of the ranks."""
    top_k: int
    """Experts of a token, at most; less than all."""
    hidden: int
    """Numbers of a token."""
    dtype: str
    """Of a token: `bfloat16` or `float32`."""
    max_tokens: int
    """Most tokens that a rank brings to one dispatch."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What all ranks agreed on about the dispatches of a step."""

    tokens: int
    """The most that any of them brings to one dispatch."""
    prefill: bool
    """Whether any of them computes prompts."""


@dataclass(frozen=True, slots=True)
class Dispatched(Generic[T]):
    """What arrived on a rank. It is the backend's and stays as it is until its `combine_finish` returned."""

    tokens: T
    """As `Dispatcher.format` says; 8-bit floats where `scales` is set."""
    counts: T
    """[local_experts], integers: rows of each expert here, in order."""
    state: Any
    """What the backend needs to send the outputs back; opaque."""
    experts: T | None = None
    """ONCE only, int64."""
    weights: T | None = None
    """ONCE only, float32."""
    scales: T | None = None
    """float32, the shape of `tokens` but for the last dimension, which is hidden / 128: what each run of 128 numbers of
    `tokens` is to be multiplied by. None: tokens are of the traffic's dtype."""
    rows: tuple[int, ...] | None = None
    """`counts` where the host knows them anyway; None: reading them would wait for the device."""


class Dispatcher(ABC, Generic[T]):
    """Sends tokens to experts on other ranks and sums what comes back. One mode: normal and low latency are two offers.

    Generic over the tensor type, so that core needs no torch. Every rank of the group makes the same calls in the same
    order, also with zero tokens; then `open` first and `close` last. Called from one thread. A start may return before
    anything moved, and its finish waits; between the two, what was given belongs to the backend. On a device with
    streams all of it is in the order of the stream that is current, and no call waits for the device unless it has to
    know sizes there. Sums are the same bits whatever else is in flight.

    A rank that is gone or silent: the finish that waits for it raises `PeerLost` within the backend's own time limit,
    and so does every later call. Where the device does the waiting, that is so at the latest when its stream is waited
    for.
    """

    format: Format
    """Of what `dispatch_finish` answers."""
    in_flight: int = 1
    """Batches that may be between `dispatch_start` and `combine_finish` at once, in any order of their steps. One more
    raises RuntimeError in `dispatch_start`, before anything is sent."""
    capacity: int | None = None
    """After `open`: most tokens of a rank in one dispatch, at least 1 where set. More raise ValueError, with both
    numbers, before anything is sent. None: as many as `Traffic.max_tokens`."""

    @abstractmethod
    def open(self, traffic: Traffic) -> None:
        """Make room for this traffic, once; all ranks together. ConfigError where it cannot be had, in one sentence."""

    def pick(self, exchange: Exchange) -> Dispatcher[T]:
        """What does the dispatches of a step: itself, or one of several that it is made of. All ranks ask the same."""
        return self

    @abstractmethod
    def dispatch_start(self, tokens: T, experts: T, weights: T) -> Any:
        """Send `tokens` [n, hidden] to `experts` [n, top_k], int64: global numbers, none twice in a row; -1: nowhere.

        `weights` [n, top_k], float32: what each expert's answer counts in the token's sum. Answers a handle.
        """

    @abstractmethod
    def dispatch_finish(self, handle: Any) -> Dispatched[T]:
        """Wait for what the others sent here. A handle is finished exactly once."""

    @abstractmethod
    def combine_start(self, outputs: T, dispatched: Dispatched[T]) -> Any:
        """Send back what experts made of `dispatched`: `outputs` of the shape of its tokens and the traffic's dtype.

        SORTED and MASKED: unweighted, row by row, rows that are not filled being anything. ONCE: weighted sums.
        """

    @abstractmethod
    def combine_finish(self, handle: Any) -> T:
        """The weighted sums [n, hidden] of this rank's tokens; zeros for one without experts. The caller's to keep."""

    def close(self) -> None:
        """Release buffers and groups; the last call. Idempotent, waits for nobody."""
