"""The two halves of a decoder layer: what each adds to the residual stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stepwell_kernels.fused import Norm
from stepwell_kernels.fused.device.plans import planned
from stepwell_transformers.fuse.norms import normed


class Branch(ABC):
    """An attention or an MLP, on a flat batch."""

    @abstractmethod
    def adds(self, tokens: int) -> bool:
        """Whether its last product adds the residual on the way."""

    @abstractmethod
    def add(
        self,
        x: torch.Tensor,
        call: Mapping[str, Any],
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`residual` + the branch of norm(`x`), [tokens, hidden]; `call`: what its layer was called with by name."""


def sums(tokens: int, weight: torch.Tensor) -> bool:
    """Whether a product of so many tokens is one that adds on the way; torch's is not."""
    rows, cols = weight.shape
    return weight.itemsize == 2 and planned(tokens, rows, cols, gated=False) is not None


class OwnBranch(Branch):
    """A module by its own forward."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._module, self._names = module, names
        """What its layer hands to it of its own call."""

    def adds(self, tokens: int) -> bool:
        return False

    def add(
        self,
        x: torch.Tensor,
        call: Mapping[str, Any],
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x if norm is None else normed(x, norm)
        found = self._module(x[None], **{name: call[name] for name in self._names if name in call})
        part: torch.Tensor = found[0] if isinstance(found, tuple) else found
        part = part.reshape(x.shape)
        return part if residual is None else residual + part
