"""Experts over ranks through collectives of fixed size: no size is read on the host, so a captured graph replays them.

Every rank sends all its tokens to all others, filled up to the capacity, and takes those that its experts are for.
With few tokens an exchange costs by its number of messages, not by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stepwell import Dispatched, Dispatcher, Format, Traffic
from stepwell_kernels.collective import Group, Moving, Solo
from stepwell_kernels.dispatch.direct import Direct
from stepwell_kernels.dispatch.permute import by_expert, local, place_rows, sum_rows
from stepwell_kernels.dispatch.rules import Batch, Rules, Step, share
from stepwell_kernels.dispatch.wire import Rows


@dataclass(slots=True)
class _Sent(Batch):
    count: int
    moving: Moving
    rows: torch.Tensor
    """What comes: tokens of all ranks, later this rank's sums from each of them."""
    kept: torch.Tensor
    """What an exchange reads until it was waited for."""
    slots: torch.Tensor = field(init=False)
    """[ranks * capacity, top_k]: where a token stands for each of its experts here; -1: nowhere."""
    weights: torch.Tensor = field(init=False)


class LowLatency(Dispatcher[torch.Tensor]):
    """See the module."""

    format = Format.MASKED
    in_flight = 2

    def __init__(self, name: str, join: Callable[[], Group], capacity: int) -> None:
        self._name, self._join, self._most = name, join, capacity
        self._rules = Rules(name, self.in_flight)
        self._group: Group = Solo()

    def open(self, traffic: Traffic) -> None:
        self.capacity = self._room = min(self._most, traffic.max_tokens)
        self._rules.open(self._room)
        self._layout = Rows.of(self._name, traffic)
        with self._rules.losing():
            self._group = self._join()
        self._share = share(self._name, traffic, self._group.size)

    def dispatch_start(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> _Sent:
        self._rules.begin(len(tokens))
        out = self._layout.empty(self._room, device=tokens.device)
        count = len(tokens)
        self._layout.tokens(out)[:count] = tokens
        self._layout.experts(out)[:count] = experts
        self._layout.experts(out)[count:] = -1
        self._layout.weights(out)[:count] = weights
        rows = self._layout.empty(self._group.size, self._room, device=tokens.device)
        with self._rules.losing():
            return _Sent(count, self._group.gather(rows, out), rows, out)

    def dispatch_finish(self, handle: _Sent) -> Dispatched[torch.Tensor]:
        self._rules.advance(handle, Step.ARRIVED)
        rows = self._came(handle).flatten(0, 1)
        experts = local(self._layout.experts(rows), self._group.rank, self._share)
        order = by_expert(experts, self._share)
        begins = torch.arange(self._share, device=rows.device) * len(rows)
        moved = begins - (order.counts.cumsum(0) - order.counts)
        handle.slots = torch.where(experts < 0, -1, order.slots + moved[experts.clamp(min=0)])
        handle.weights = self._layout.weights(rows)
        tokens = self._layout.tokens(rows)
        room = tokens.new_empty((self._share, len(rows), tokens.shape[1]))
        place_rows(tokens, handle.slots, room.flatten(0, 1))
        return Dispatched(room, order.counts, handle)

    def combine_start(self, outputs: torch.Tensor, dispatched: Dispatched[torch.Tensor]) -> _Sent:
        sent: _Sent = dispatched.state
        self._rules.advance(sent, Step.RETURNED)
        sent.kept = sum_rows(outputs.flatten(0, 1), sent.slots, sent.weights)
        sent.rows = torch.empty_like(sent.kept)
        with self._rules.losing():
            sent.moving = self._group.all_to_all(sent.rows, sent.kept)
        return sent

    def combine_finish(self, handle: _Sent) -> torch.Tensor:
        self._rules.advance(handle, Step.SUMMED)
        sums = self._came(handle).view(self._group.size, self._room, -1)[:, : handle.count]
        whole = sums[0].float()
        for part in sums[1:]:
            whole = whole + part  # in the order of ranks
        return whole.to(sums.dtype)

    def close(self) -> None:
        self._rules.close()
        self._group.close()

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Direct:
        """The two exchanges alone, of rows that are ready to be sent."""
        ranks, room = self._group.size, self._room
        out = self._layout.empty(room, device=tokens.device)
        rows = self._layout.empty(ranks, room, device=tokens.device)
        answers = tokens.new_empty((ranks * room, tokens.shape[1]))
        return _Exchanges(self._group, out, rows, answers, torch.empty_like(answers))

    def _came(self, sent: _Sent) -> torch.Tensor:
        with self._rules.losing():
            sent.moving.wait()
        return sent.rows


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """See `LowLatency.direct`."""

    group: Group
    out: torch.Tensor
    rows: torch.Tensor
    answers: torch.Tensor
    sums: torch.Tensor

    def dispatch(self) -> None:
        self.group.gather(self.rows, self.out).wait()

    def combine(self) -> None:
        self.group.all_to_all(self.sums, self.answers).wait()
