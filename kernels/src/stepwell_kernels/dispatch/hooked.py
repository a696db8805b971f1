"""Low latency of libraries that send at once and receive in a hook: DeepEP's, and those that follow its interface.

Such a library has two buffers of flags and takes them in turn, one an operation; whoever sends wipes the flags of the
buffer that comes next. An operation that was sent and not received yet would wait for ever for flags that the next
send has wiped. So there is never more than one: a send first receives what is outstanding, whoever's it is. That only
moves the receive ahead in the stream, never past what it waits for: all ranks call in one order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from stepwell import ConfigError, Dispatched, Format, Traffic
from stepwell_kernels.dispatch.library import Lent, LibraryDispatcher, Peers

HIDDEN = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
"""What their kernels are compiled for."""
TOP_K = 11
"""Experts of a token, at most."""

Hook = Callable[[], None]
Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""[local_experts, ranks * capacity, hidden], and scales where they are 8-bit floats."""


@dataclass(slots=True, kw_only=True)
class Hooked(Lent):
    """A batch, and what the library gave for it."""

    hook: Hook | None
    """Receives what was sent; None: it is received."""
    handle: object
    rows: Rows
    counts: torch.Tensor
    stream: torch.cuda.Stream | None
    """On which the library receives, whichever is current then; None on a device without."""
    sums: torch.Tensor | None = None


@dataclass(frozen=True)
class Arriving:
    """What a library's dispatch answers: written by `hook`, where there is one."""

    rows: Rows
    counts: torch.Tensor
    handle: object
    hook: Hook | None


class ByHand:
    """One batch there and back, each in one call."""

    def __init__(self, there: Callable[[], Arriving], back: Callable[[torch.Tensor, object], object]) -> None:
        self._there, self._back = there, back
        self._came = there()
        rows = self._came.rows[0] if isinstance(self._came.rows, tuple) else self._came.rows
        self._outputs = torch.zeros_like(rows, dtype=torch.bfloat16)
        self.combine()

    def dispatch(self) -> object:
        self._came = self._there()
        return self._came

    def combine(self) -> object:
        return self._back(self._outputs, self._came.handle)


class HookedDispatcher(LibraryDispatcher[Hooked]):
    """See above. Subclasses make the buffer in `_make`, and call the library in `_dispatch` and `_combine`."""

    format = Format.MASKED
    multiple = 128
    """What a hidden size of 8-bit floats has to be a multiple of."""

    def __init__(self, name: str, join: Callable[[], Peers], capacity: int, float8: bool) -> None:
        super().__init__(name, join)
        self._asked, self._float8 = capacity, float8
        self._outstanding: Hooked | None = None

    @abstractmethod
    def _make(self, traffic: Traffic, peers: Peers, capacity: int) -> None:
        """Make the library's buffer for so many tokens a rank."""

    @abstractmethod
    def _dispatch(self, tokens: torch.Tensor, experts: torch.Tensor, hooked: bool) -> Arriving:
        """Send; and receive, unless in a hook."""

    @abstractmethod
    def _combine(
        self, outputs: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, handle: object, hooked: bool
    ) -> tuple[torch.Tensor, Hook | None]:
        """Send outputs back: the sums, and what writes them; where there is no hook they are written."""

    def _silent(self) -> torch.Tensor | None:
        """Nonzero for each rank that was waited for in vain; None where the library's kernels stop then."""
        return None

    def _open(self, traffic: Traffic, peers: Peers) -> int:
        self._judge(traffic, peers.size)
        capacity = -(-min(self._asked, traffic.max_tokens) // 4) * 4
        self._most, self._experts = capacity, traffic.experts
        self._make(traffic, peers, capacity)
        self.capacity = capacity
        return capacity

    def _send(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, count: int) -> Hooked:
        self._settle()
        came = self._dispatch(tokens, experts, hooked=True)
        batch = Hooked(
            experts=experts,
            weights=weights,
            tokens=count,
            hook=came.hook,
            handle=came.handle,
            rows=came.rows,
            counts=came.counts,
            stream=_stream(tokens),
        )
        self._outstanding = batch
        return batch

    def _receive(self, batch: Hooked) -> Dispatched[torch.Tensor]:
        self._land(batch)
        self._watch(on_device=False)
        tokens, scales = batch.rows if isinstance(batch.rows, tuple) else (batch.rows, None)
        return Dispatched(tokens, batch.counts, batch, scales=scales)

    def _return(self, outputs: torch.Tensor, batch: Hooked) -> None:
        self._settle()
        batch.stream = _stream(outputs)
        batch.sums, batch.hook = self._combine(outputs, batch.experts, batch.weights, batch.handle, hooked=True)
        self._outstanding = batch

    def _sum(self, batch: Hooked) -> torch.Tensor:
        self._land(batch)
        self._watch(on_device=True)
        assert batch.sums is not None
        return batch.sums

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> ByHand:
        """The library alone, in its plainest calls; see `HasDirect`."""
        there = partial(self._dispatch, tokens, experts, hooked=False)
        return ByHand(there, lambda outputs, handle: self._combine(outputs, experts, weights, handle, hooked=False))

    def _settle(self) -> None:
        if self._outstanding is not None:
            self._land(self._outstanding)

    def _land(self, batch: Hooked) -> None:
        hook, batch.hook = batch.hook, None
        if hook is not None:
            self._outstanding = None
            hook()
            if batch.stream is not None and batch.stream != torch.cuda.current_stream(batch.stream.device):
                torch.cuda.current_stream(batch.stream.device).wait_stream(batch.stream)

    def _watch(self, *, on_device: bool) -> None:
        """Let no sum pass that a rank is missing from: these libraries go on without it.

        On a device the stream stops for good, as it does with libraries whose kernels stop; once a batch is enough,
        since a rank that is missing from a dispatch stays missing.
        """
        silent = self._silent()
        if silent is None:
            return
        if silent.device.type == "cpu":
            ranks = silent.nonzero().flatten().tolist()
            if ranks:
                raise RuntimeError(f"rank {', '.join(map(str, ranks))} did not answer in time")
        elif on_device:
            torch._assert_async(silent.sum() == 0, f"{self._name}: a rank did not answer in time")

    def _judge(self, traffic: Traffic, ranks: int) -> None:
        name = self._name
        if traffic.hidden not in HIDDEN:
            known = ", ".join(map(str, HIDDEN))
            raise ConfigError(f"dispatch {name!r}: its kernels know hidden sizes of {known}, not {traffic.hidden}")
        if traffic.top_k > TOP_K:
            raise ConfigError(f"dispatch {name!r}: its kernels take {TOP_K} experts of a token, not {traffic.top_k}")
        if traffic.experts % ranks:
            raise ConfigError(f"dispatch {name!r}: {traffic.experts} experts do not spread evenly over {ranks} ranks")
        if self._float8 and traffic.hidden % self.multiple:
            why = f"8-bit tokens have a hidden size that is a multiple of {self.multiple}, not {traffic.hidden}"
            raise ConfigError(f"dispatch {name!r}: {why}; set tokens = 'bfloat16'")


def _stream(tensor: torch.Tensor) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
