"""What the ranks of one model say to each other: sums and concatenations of tensors, and numbers that all keep to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from stepwell_kernels.fused import Norm, add_rms_norm, joined


class Moving(Protocol):
    """A collective that was started; what it reads and writes is its own until it was waited for."""

    def wait(self) -> object:
        """Until it is done; on CUDA the current stream waits, the host does not. RuntimeError where a rank is lost."""


class Done:
    """Nothing had to move."""

    def wait(self) -> None:
        pass


class Group(ABC):
    """Some ranks, each a process (or thread) of its own that calls the same methods with the same shapes in one order.

    After a collective all ranks hold the same bits. On CUDA a call queues work on the current stream and returns;
    all ranks use one stream for collectives, and may capture them in a graph.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Put the sum over all ranks into `x`, which is contiguous, and return it."""

    def all_reduce_add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, sum) of `residual` and the sum over all ranks of `x`, which `before` norms first.

        [rows, dim] each; `x` may be written over, and be what `linear_parts` answers.
        """
        whole = self.all_reduce(joined(x, residual.dtype))
        return add_rms_norm(whole, residual, norm.weight, norm.eps, norm.offset, norm.late, before)

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks side by side along the last dimension, in the order of ranks."""

    @abstractmethod
    def least(self, *numbers: int) -> tuple[int, ...]:
        """For each number the least that any rank named: what all ranks can keep to. Waits for all of them."""

    @abstractmethod
    def all_to_all(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        arrive: Sequence[int] | None = None,
        leave: Sequence[int] | None = None,
    ) -> Moving:
        """Start to send the next `leave[r]` rows of `x` to each rank r, and to put `arrive[r]` rows from it into `out`.

        Both contiguous; in equal parts, where nothing else is said. Collectives end in the order in which they started.
        """

    @abstractmethod
    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Moving:
        """Start to put the `x` of all ranks into `out` [ranks, *x.shape]. Both contiguous."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Idempotent; nobody waits for anybody."""


class Solo(Group):
    """One rank that has everything."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def least(self, *numbers: int) -> tuple[int, ...]:
        return numbers

    def all_to_all(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        arrive: Sequence[int] | None = None,
        leave: Sequence[int] | None = None,
    ) -> Moving:
        out.copy_(x)
        return Done()

    def gather(self, out: torch.Tensor, x: torch.Tensor) -> Moving:
        out[0].copy_(x)
        return Done()

    def close(self) -> None:
        pass
