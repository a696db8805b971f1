"""The two halves of a decoder layer: what each adds to the residual stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stepwell_kernels.collective import Group
from stepwell_kernels.fused import Norm, add_rms_norm, linear, linear_add_norm, linear_parts
from stepwell_transformers.spread.rows import RowLinear

Call = Mapping[str, Any]
"""What a layer was called with, by name."""


class Branch(ABC):
    """An attention or an MLP, on a flat batch [tokens, hidden]."""

    @abstractmethod
    def add(self, x: torch.Tensor, call: Call, residual: torch.Tensor | None = None) -> torch.Tensor:
        """`residual` + the branch of `x`."""

    @abstractmethod
    def add_norm(
        self, x: torch.Tensor, call: Call, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, sum) of `residual` and the branch of `x`, which `before` norms first."""


class FusedBranch(Branch):
    """One whose last product and what comes behind it are one operation, unless ranks have to sum between the two."""

    def __init__(self, last: nn.Linear) -> None:
        self.last = last
        self._group = last.group if isinstance(last, RowLinear) else None

    @abstractmethod
    def inner(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        """What the last product is of."""

    def add(self, x: torch.Tensor, call: Call, residual: torch.Tensor | None = None) -> torch.Tensor:
        if self._group is None:
            return linear(self.inner(x, call), self.last.weight, self.last.bias, residual)
        part = self._summed(self._group, x, call)
        return part if residual is None else residual + part

    def add_norm(
        self, x: torch.Tensor, call: Call, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._group is None:
            return linear_add_norm(self.inner(x, call), self.last.weight, residual, norm, self.last.bias, before)
        if self.last.bias is None:
            parts = linear_parts(self.inner(x, call), self.last.weight)
            return self._group.all_reduce_add_norm(parts, residual, norm, before)
        part = self._summed(self._group, x, call)
        return add_rms_norm(part, residual, norm.weight, norm.eps, norm.offset, norm.late, before)

    def _summed(self, group: Group, x: torch.Tensor, call: Call) -> torch.Tensor:
        part = group.all_reduce(linear(self.inner(x, call), self.last.weight))
        return part if self.last.bias is None else part + self.last.bias


class OwnBranch(Branch):
    """A module by its own forward."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._module, self._names = module, names
        """What its layer hands to it of its own call."""

    def add(self, x: torch.Tensor, call: Call, residual: torch.Tensor | None = None) -> torch.Tensor:
        found = self._module(x[None], **{name: call[name] for name in self._names if name in call})
        part: torch.Tensor = found[0] if isinstance(found, tuple) else found
        part = part.reshape(x.shape)
        return part if residual is None else residual + part

    def add_norm(
        self, x: torch.Tensor, call: Call, residual: torch.Tensor, norm: Norm, before: Norm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.add(x, call)
        return add_rms_norm(part, residual, norm.weight, norm.eps, norm.offset, norm.late, before)
