"""Ranks that are threads of one process: a group for tests, which needs neither sockets nor other processes."""

from __future__ import annotations

import threading

import torch

from stepwell_kernels.collective.group import Group


def thread_groups(size: int, timeout_s: float = 60.0) -> list[Group]:
    """A group for each of `size` threads; a thread that waits longer for the others raises BrokenBarrierError."""
    table = _Table(size, timeout_s)
    return [_ThreadGroup(rank, size, table) for rank in range(size)]


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


class _ThreadGroup(Group):
    def __init__(self, rank: int, size: int, table: _Table) -> None:
        super().__init__(rank, size)
        self._table = table

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        parts = self._tensors(x)
        return x.copy_(torch.stack([part.float() if x.is_floating_point() else part for part in parts]).sum(0))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._tensors(x), dim=-1)

    def least(self, *numbers: int) -> tuple[int, ...]:
        asked = [part for part in self._table.exchange(self.rank, numbers) if isinstance(part, tuple)]
        return tuple(min(column) for column in zip(*asked, strict=True))

    def close(self) -> None:
        self._table.abort()

    def _tensors(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = self._table.exchange(self.rank, x.clone())
        return [part for part in parts if isinstance(part, torch.Tensor)]
