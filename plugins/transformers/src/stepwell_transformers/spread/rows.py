"""Modules that know a part of what they did, and ask the other ranks for theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from stepwell_kernels.collective import Group

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class RowLinear(nn.Linear):
    """Some columns of a weight, for as many features of the input: the product is a sum over ranks.

    Its bias is whole on every rank and added to that sum.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, group: Group) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight, self.group = weight, group
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.group.all_reduce(functional.linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class CutLinear(RowLinear):
    """A RowLinear that is given all features of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.group.rank * self.in_features
        return super().forward(x[..., first : first + self.in_features])


class GatherLinear(nn.Linear):
    """Some rows of a weight: every rank gets the features of all, in order."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, group: Group, features: int) -> None:
        """`features`: of the whole weight; what ranks have beyond them is padding."""
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight, self.group, self.features = weight, group, features
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gathered(x, functional.linear)

    def gathered(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """What all ranks have of `linear(x, weight, bias)`."""
        if not x.numel():  # a step that samples nothing
            return x.new_empty((*x.shape[:-1], self.features))
        return self.group.all_gather(linear(x, self.weight, self.bias))[..., : self.features]


class SumEmbedding:
    """The forward of an embedding that has some of the tokens: the others' rows are zeros here, and summed."""

    def __init__(self, module: nn.Embedding, group: Group) -> None:
        self._own: Callable[[torch.Tensor], torch.Tensor] = module.forward
        self._count, self._group = module.num_embeddings, group

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        own = tokens - self._group.rank * self._count
        away = (own < 0) | (own >= self._count)
        found = self._own(own.masked_fill(away, 0)).masked_fill(away[..., None], 0)
        return self._group.all_reduce(found)


def summed(group: Group) -> Callable[[nn.Module, object, torch.Tensor], torch.Tensor]:
    """A hook for a module each rank of which answers a part of a sum."""

    def hook(_: nn.Module, __: object, answer: torch.Tensor) -> torch.Tensor:
        return group.all_reduce(answer.contiguous())

    return hook
