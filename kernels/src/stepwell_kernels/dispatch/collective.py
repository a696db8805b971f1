"""Experts over ranks through plain collectives: exact sizes, and every token once to each rank that has its experts.

A token and what it weighs take `top_k` times eight bytes beside its numbers, and sums come back instead of the answers
of single experts: with eight experts a token and two ranks that is a quarter of the bytes of a row for each expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from stepwell import Dispatched, Dispatcher, Format, PeerLost, Traffic
from stepwell_kernels.collective import Group, Moving, Solo
from stepwell_kernels.dispatch.buffers import Buffers
from stepwell_kernels.dispatch.direct import Direct
from stepwell_kernels.dispatch.host import on_host
from stepwell_kernels.dispatch.permute import Routes, local, sum_rows, to_ranks
from stepwell_kernels.dispatch.rules import Batch, Rules, Step, share
from stepwell_kernels.dispatch.wire import Rows


@dataclass(slots=True)
class _Sent(Batch):
    tokens: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor
    routes: Routes
    leave: Sequence[int] = ()
    """Rows for each rank; what it gets back from them later."""
    arrive: Sequence[int] = ()
    counts: torch.Tensor | None = None
    """Pairs of each expert here, on the device."""
    known: Sequence[int] = ()
    """The same on the host."""
    moving: Moving | None = None
    rows: torch.Tensor | None = None
    """What comes: tokens, later the sums."""
    outputs: torch.Tensor | None = None
    """What goes back, kept while it does."""
    buffers: list[torch.Tensor] = field(default_factory=list)
    """Bytes that are used again when all is done."""


class Collective(Dispatcher[torch.Tensor]):
    """See the module. `dispatch_start` waits until all ranks have said how much they send, on the host."""

    format = Format.ONCE
    in_flight = 2

    def __init__(self, name: str, join: Callable[[], Group], timeout_s: float) -> None:
        self._name, self._join, self._timeout_s = name, join, timeout_s
        self._rules = Rules(name, self.in_flight)
        self._group: Group = Solo()
        self._buffers = Buffers()

    def open(self, traffic: Traffic) -> None:
        self._rules.open(traffic.max_tokens)
        self._layout = Rows.of(self._name, traffic)
        with self._rules.losing():
            self._group = self._join()
        self._share = share(self._name, traffic, self._group.size)

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> _Sent:
        self._rules.begin(len(tokens))
        sent = _Sent(tokens, experts, weights, to_ranks(experts, self._group.size, self._share))
        with suppress(PeerLost):  # dispatch_finish says it
            self._agree(sent)
            self._send(sent)
        return sent

    def dispatch_finish(self, handle: _Sent) -> Dispatched[torch.Tensor]:
        self._rules.advance(handle, Step.ARRIVED)
        rows = self._came(handle)
        assert handle.counts is not None, "sizes came before rows"
        return Dispatched(
            tokens=self._layout.tokens(rows),
            counts=handle.counts,
            state=handle,
            experts=local(self._layout.experts(rows), self._group.rank, self._share),
            weights=self._layout.weights(rows),
            rows=tuple(handle.known),
        )

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> _Sent:
        sent: _Sent = dispatched.state
        self._rules.advance(sent, Step.RETURNED)
        outputs = outputs.contiguous()
        sent.outputs = outputs
        hidden = outputs.shape[1]
        back = self._take(sent, sum(sent.leave) * hidden * outputs.itemsize)
        sent.rows = back.view(outputs.dtype).view(-1, hidden)
        with self._rules.losing():
            sent.moving = self._group.all_to_all(sent.rows, outputs, sent.leave, sent.arrive)
        return sent

    def combine_finish(self, handle: _Sent) -> torch.Tensor:
        self._rules.advance(handle, Step.SUMMED)
        sums = sum_rows(self._came(handle), handle.routes.slots)
        for buffer in handle.buffers:
            self._buffers.give(buffer)
        return sums

    def close(self) -> None:
        self._rules.close()
        self._group.close()

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Direct:
        """The two exchanges alone, of rows that are ready to be sent, with sizes that are known."""
        sent = _Sent(tokens, experts, weights, to_ranks(experts, self._group.size, self._share))
        self._agree(sent)
        return _Exchanges(
            self._group,
            (self._layout.empty(sum(sent.arrive), device=tokens.device), sent.arrive),
            (self._layout.empty(sum(sent.leave), device=tokens.device), sent.leave),
            tokens.new_empty((sum(sent.arrive), tokens.shape[1])),
            tokens.new_empty((sum(sent.leave), tokens.shape[1])),
        )

    def _agree(self, sent: _Sent) -> None:
        """Find out how many rows each rank sends, and to which experts."""
        mine = sent.routes.sizes
        others = torch.empty_like(mine)
        with self._rules.losing():
            self._group.all_to_all(others, mine).wait()
            ours, theirs = on_host(torch.stack([mine, others]), self._timeout_s)
        sent.leave = ours[:, 0].tolist()
        sent.arrive = theirs[:, 0].tolist()
        sent.counts = others[:, 1:].sum(0)
        sent.known = theirs[:, 1:].sum(0).tolist()

    def _send(self, sent: _Sent) -> None:
        """Start to move the rows."""
        width = self._layout.width
        out = self._take(sent, sum(sent.leave) * width).view(-1, width)
        which = sent.routes.tokens[: len(out)]
        torch.index_select(sent.tokens, 0, which, out=self._layout.tokens(out))
        self._layout.experts(out).copy_(sent.experts[which])
        self._layout.weights(out).copy_(sent.weights[which])
        sent.rows = self._take(sent, sum(sent.arrive) * width).view(-1, width)
        with self._rules.losing():
            sent.moving = self._group.all_to_all(sent.rows, out, sent.arrive, sent.leave)

    def _came(self, sent: _Sent) -> torch.Tensor:
        assert sent.moving is not None and sent.rows is not None, "a start came before"
        with self._rules.losing():
            sent.moving.wait()
        return sent.rows

    def _take(self, sent: _Sent, nbytes: int) -> torch.Tensor:
        sent.buffers.append(self._buffers.take(nbytes, sent.tokens.device))
        return sent.buffers[-1]


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """See `Collective.direct`."""

    group: Group
    come: tuple[torch.Tensor, Sequence[int]]
    go: tuple[torch.Tensor, Sequence[int]]
    answers: torch.Tensor
    sums: torch.Tensor

    def dispatch(self) -> None:
        (come, arrive), (go, leave) = self.come, self.go
        self.group.all_to_all(come, go, arrive, leave).wait()

    def combine(self) -> None:
        self.group.all_to_all(self.sums, self.answers, self.go[1], self.come[1]).wait()
