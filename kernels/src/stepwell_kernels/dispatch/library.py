"""What a dispatcher over somebody's library sees to itself, so that only calls of the library are left to write."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import distributed

from stepwell import ConfigError, Context, Dispatched, Dispatcher, Traffic
from stepwell_kernels.collective.torch_group import TorchGroup
from stepwell_kernels.dispatch.rules import Batch, Rules, Step

LOSSES = ("timeout", "timed out", "cpu wait", "device-side assert", "unspecified launch failure", "did not answer")
"""What is said of a rank that was waited for in vain: on the host, or of a kernel that gave up."""


class Peers(Protocol):
    """The ranks that exchange tokens, as a `TorchGroup` has them."""

    rank: int
    size: int
    store: distributed.Store
    device: torch.device

    def named(self, name: str, store: distributed.Store) -> distributed.ProcessGroup: ...
    def close(self) -> None: ...


def meet(context: Context, name: str, timeout_s: float) -> Peers:
    """All ranks of the context, which meet under a name of their own: that of the offer."""
    return TorchGroup.join(context.meet, context.rank, context.world, context.device, timeout_s, name=name)


@dataclass(slots=True, kw_only=True)
class Lent(Batch):
    """A batch as libraries take it."""

    experts: torch.Tensor
    weights: torch.Tensor
    tokens: int
    """What the caller brought: one less than the library was given where that is none."""


B = TypeVar("B", bound=Lent)


class LibraryDispatcher(Dispatcher[torch.Tensor], Generic[B]):
    """Keeps the rules, and tells losses. Its handles are batches.

    Some libraries cannot send nothing: a rank without tokens sends one of zeros to no expert, and never sees it again.
    """

    in_flight = 2

    def __init__(self, name: str, join: Callable[[], Peers]) -> None:
        self._name, self._join = name, join
        self._peers: Peers | None = None
        self._rules = Rules(name, self.in_flight)

    # --- what a library does ---

    @abstractmethod
    def _open(self, traffic: Traffic, peers: Peers) -> int:
        """Make the library's buffers; most tokens of a dispatch. ConfigError where it cannot take this traffic."""

    @abstractmethod
    def _send(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, count: int) -> B:
        """Begin a dispatch of `count` tokens. `tokens` are the caller's, `experts` and `weights` ours to keep."""

    @abstractmethod
    def _receive(self, batch: B) -> Dispatched[torch.Tensor]:
        """End it; the state of the answer is `batch`."""

    @abstractmethod
    def _return(self, outputs: torch.Tensor, batch: B) -> None:
        """Begin the combine."""

    @abstractmethod
    def _sum(self, batch: B) -> torch.Tensor:
        """End it: sums that the library never writes to again, that of a token of zeros included."""

    @abstractmethod
    def _free(self) -> None:
        """Give the library's buffers back, made or not."""

    # --- the contract ---

    def open(self, traffic: Traffic) -> None:
        if self._peers is not None:
            raise RuntimeError(f"{self._name} was opened before")
        if traffic.dtype != "bfloat16":
            raise ConfigError(
                f"dispatch {self._name!r} moves bfloat16, not {traffic.dtype}: load the model in bfloat16"
            )
        self._peers = self._join()
        self._rules.open(self._open(traffic, self._peers))

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> B:
        count = tokens.shape[0]
        self._rules.begin(count)
        if count == 0:
            tokens = tokens.new_zeros(1, tokens.shape[1])
            experts, weights = experts.new_full((1, experts.shape[1]), -1), weights.new_zeros(1, weights.shape[1])
        with self._telling():
            return self._send(tokens.contiguous(), _own(experts), _own(weights), count)

    def dispatch_finish(self, handle: B) -> Dispatched[torch.Tensor]:
        self._rules.advance(handle, Step.ARRIVED)
        with self._telling():
            return self._receive(handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> B:
        if outputs.shape != dispatched.tokens.shape or outputs.dtype != torch.bfloat16:
            wanted, got = tuple(dispatched.tokens.shape), tuple(outputs.shape)
            raise ValueError(f"{self._name}: outputs are {outputs.dtype} {got}, not torch.bfloat16 {wanted}")
        batch: B = dispatched.state
        self._rules.advance(batch, Step.RETURNED)
        with self._telling():
            self._return(outputs.contiguous(), batch)
        return batch

    def combine_finish(self, handle: B) -> torch.Tensor:
        self._rules.advance(handle, Step.SUMMED)
        with self._telling():
            return self._sum(handle)[: handle.tokens]

    def close(self) -> None:
        self._rules.close()
        peers, self._peers = self._peers, None
        if peers is not None:
            self._free()
            peers.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not any(loss in str(error).lower() for loss in LOSSES):
                raise
            with self._rules.losing():
                raise


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy: what the caller has is the caller's again before the combine reads it."""
    return tensor.clone(memory_format=torch.contiguous_format)
