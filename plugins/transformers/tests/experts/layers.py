"""A layer of experts over some ranks, and what they make of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from stepwell_kernels.collective import Group, Solo
from stepwell_transformers.experts import Told
from stepwell_transformers.experts.experts import Experts
from stepwell_transformers.spread import Plan, install

HIDDEN = 8


class Multiplying(nn.Module):
    """Experts of which number e multiplies by e + 1."""

    def __init__(self, count: int, config: Any, after: nn.Module | None) -> None:
        super().__init__()
        self.has_gate = self.has_bias = self.is_transposed = False
        self.has_post_expert_norm, self.post_expert_norm = after is not None, after
        self.config, self.act_fn = config, nn.Identity()
        factors = torch.arange(1.0, count + 1)[:, None, None]
        self.up_proj = nn.Parameter(torch.eye(HIDDEN) * factors, requires_grad=False)
        self.down_proj = nn.Parameter(torch.eye(HIDDEN).repeat(count, 1, 1), requires_grad=False)


class Model(nn.Module):
    """Of one layer, and a router that is not asked."""

    def __init__(self, count: int, top_k: int, after: nn.Module | None = None) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_experts_per_tok=top_k, hidden_size=HIDDEN, _experts_implementation="eager")
        self.block = nn.Module()
        self.block.experts = Multiplying(count, self.config, after)
        self.dtype, self.device = torch.float32, torch.device("cpu")

    def set_experts_implementation(self, name: str) -> None:
        self.config._experts_implementation = name


class Layer:
    """That layer over some ranks, which have tokens of their own or, in a `groups` of several, the same ones."""

    def __init__(
        self,
        asked_for: Any,
        table: Any,
        groups: Sequence[Group],
        count: int,
        top_k: int,
        after: nn.Module | None = None,
        **more: Any,
    ) -> None:
        self.groups, ranks = groups, table(len(groups))

        def take(rank: int) -> Experts:
            model = Model(count, top_k, after)
            asked = asked_for(ranks, rank, **more)
            install(model, Plan(1, {}, asked.cuts(model), frozenset(), frozenset()), Solo())
            return Experts(model, asked, groups[rank])

        self.experts = self.each(take)

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self.groups)) as threads:
            return list(threads.map(work, range(len(self.groups))))

    def run(
        self, batches: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], **told: Any
    ) -> list[torch.Tensor]:
        def go(rank: int) -> torch.Tensor:
            tokens, experts, weights = batches[rank]
            spread = self.experts[rank]
            with spread.running(Told(**told), len(tokens)):
                return spread.layers[0].run(tokens, experts, weights)

        return self.each(go)


def batch(
    tokens: int, count: int = 8, top_k: int = 2, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    experts = (
        torch.stack([torch.randperm(count, generator=random)[:top_k] for _ in range(tokens)] or [])
        if tokens
        else torch.empty((0, top_k), dtype=torch.int64)
    )
    return torch.randn((tokens, HIDDEN), generator=random), experts, torch.rand((tokens, top_k), generator=random)


def wanted(tokens: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return tokens * ((experts + 1) * weights).sum(1, keepdim=True)


def check(got: Sequence[torch.Tensor], batches: Sequence[Any]) -> None:
    for one, given in zip(got, batches, strict=True):
        torch.testing.assert_close(one, wanted(*given))
