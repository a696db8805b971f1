"""What a dispatcher may have beside the contract: what it sends with, called directly, to be measured against."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


class Direct(Protocol):
    """The same batch over and over, by the library alone; everything that can be prepared is."""

    def dispatch(self) -> object:
        """Move the tokens; on CUDA in the order of the current stream."""

    def combine(self) -> object:
        """Move answers back."""


@runtime_checkable
class HasDirect(Protocol):
    """An open dispatcher that has it."""

    def direct(self, tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> Direct:
        """For a batch as `dispatch_start` takes it, which was dispatched before; all ranks together."""
