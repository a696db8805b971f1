"""Ranks that are threads of one process: a group for tests, which needs neither sockets nor other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stepwell_kernels.collective.group import Group, Moving


def thread_groups(size: int, timeout_s: float = 60.0) -> list[Group]:
    """A group for each of `size` threads; a thread that waits longer for the others raises BrokenBarrierError."""
    table, post = _Table(size, timeout_s), _Post(size, timeout_s)
    return [_ThreadGroup(rank, size, table, post) for rank in range(size)]


class _Table:
    """Where each rank puts down what the others take: nobody takes before all have put, nor puts before all took."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._places: list[object] = [None] * size
        self._barrier = threading.Barrier(size, timeout=timeout_s)

    def exchange(self, rank: int, thing: object) -> list[object]:
        self._places[rank] = thing
        self._barrier.wait()
        everything = list(self._places)
        self._barrier.wait()
        return everything

    def abort(self) -> None:
        self._barrier.abort()


class _Post:
    """Where ranks leave what others take later: the n-th round of each belongs to the n-th of all others."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size, self._timeout_s = size, timeout_s
        self._parts: dict[tuple[int, int, int], torch.Tensor] = {}
        self._left: set[int] = set()
        self._changed = threading.Condition()

    def put(self, turn: int, sender: int, parts: Sequence[torch.Tensor]) -> None:
        with self._changed:
            self._parts.update({(turn, sender, to): part for to, part in enumerate(parts)})
            self._changed.notify_all()

    def take(self, turn: int, receiver: int) -> list[torch.Tensor]:
        keys = [(turn, sender, receiver) for sender in range(self._size)]
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while lacking := [key for key in keys if key not in self._parts]:
                if (gone := lacking[0][1]) in self._left:
                    raise RuntimeError(f"rank {gone} has left")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise RuntimeError(f"rank {gone} was silent for {self._timeout_s:g} s")
            return [self._parts.pop(key) for key in keys]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _Coming:
    """What others send to this rank in a round."""

    post: _Post
    turn: int
    rank: int
    out: torch.Tensor

    def wait(self) -> None:
        torch.cat(self.post.take(self.turn, self.rank), out=self.out)


class _ThreadGroup(Group):
    def __init__(self, rank: int, size: int, table: _Table, post: _Post) -> None:
        super().__init__(rank, size)
        self._table, self._post, self._turn = table, post, 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._tensors(x)
        return x.copy_(torch.stack([part.float() if x.is_floating_point() else part for part in parts]).sum(0))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._tensors(x), dim=-1)

    def least(self, *numbers: int) -> tuple[int, ...]:
        asked = [part for part in self._table.exchange(self.rank, numbers) if isinstance(part, tuple)]
        return tuple(min(column) for column in zip(*asked, strict=True))

    def all_to_all(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        arrive: Sequence[int] | None = None,
        leave: Sequence[int] | None = None,
    ) -> Moving:
        return self._moving(out, x.clone().split(list(leave or [len(x) // self.size] * self.size)))

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Moving:
        return self._moving(out.view(-1, *x.shape[1:]), [x.clone()] * self.size)

    def close(self) -> None:
        self._post.leave(self.rank)
        self._table.abort()

    def _moving(self, out: torch.Tensor, parts: Sequence[torch.Tensor]) -> Moving:
        self._post.put(self._turn, self.rank, parts)
        self._turn += 1
        return _Coming(self._post, self._turn - 1, self.rank, out)

    def _tensors(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = self._table.exchange(self.rank, x.clone())
        return [part for part in parts if isinstance(part, torch.Tensor)]
