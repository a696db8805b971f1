"""Which rows go where: tokens sorted by expert and summed again, and the ranks that each of them has to reach.

Nothing here reads a size from a device unless it says so, and sums run over a token's experts in the order in which
they were named: a token's result has the same bits whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Order:
    """Pairs of a token and an expert, sorted by expert, then by token; pairs without an expert last."""

    tokens: torch.Tensor
    """[pairs], int64: whose each is."""
    slots: torch.Tensor
    """[n, top_k], int64: where each pair of a token went; -1: it has no expert."""
    counts: torch.Tensor
    """[experts], int64: pairs of each expert."""


def by_expert(experts: torch.Tensor, count: int) -> Order:
    """Sort the pairs of `experts` [n, top_k], which are below `count`; -1: none."""
    n, top_k = experts.shape
    keys = torch.where(experts < 0, count, experts).reshape(-1)
    order = keys.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(count + 1, dtype=torch.int64, device=keys.device)
    counts.scatter_add_(0, keys, torch.ones_like(keys))
    slots = torch.where(experts < 0, -1, places.view(n, top_k))
    return Order(order // max(top_k, 1), slots, counts[:count])


def sum_rows(rows: torch.Tensor, slots: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """[n, hidden]: of each token the sum of `rows` at its `slots` [n, top_k], times `weights`; -1: none.

    In float32, rounded once to the dtype of `rows`. What stands in rows that no slot names does not matter.
    """
    if rows.device.type == "cuda":
        from stepwell_kernels.dispatch.device.sums import sum_rows_cuda

        return sum_rows_cuda(rows, slots, weights)
    whole = torch.zeros((len(slots), rows.shape[1]), dtype=torch.float32, device=rows.device)
    for column in range(slots.shape[1] if len(rows) else 0):
        slot = slots[:, column]
        (named,) = torch.nonzero(slot >= 0, as_tuple=True)
        part = rows[slot[named]].float()
        whole[named] += part if weights is None else part * weights[named, column].float()[:, None]
    return whole.to(rows.dtype)
