"""Which rows go where: tokens sorted by expert and summed again, and the ranks that each of them has to reach.

Nothing here reads a size from a device unless it says so, and sums run over a token's experts in the order in which
they were named: a token's result has the same bits whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CACHED = 1 << 17
"""Numbers that are summed at a time on the CPU: what stays in its caches, and is not asked of the system each time."""


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
    if len(rows) == 0:
        return rows.new_zeros((len(slots), rows.shape[1]))
    out = rows.new_empty((len(slots), rows.shape[1]))
    step = max(CACHED // rows.shape[1], 1)
    for at in range(0, len(slots), step):
        some = slice(at, at + step)
        out[some] = _sums(rows, slots[some], None if weights is None else weights[some])
    return out


def _sums(rows: torch.Tensor, slots: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    whole = torch.zeros((len(slots), rows.shape[1]), dtype=torch.float32)
    for column, slot in enumerate(slots.unbind(1)):
        part = rows.index_select(0, slot.clamp(min=0))
        (absent,) = torch.nonzero(slot < 0, as_tuple=True)
        part.index_fill_(0, absent, 0)
        whole += part if weights is None else part * weights[:, column, None].index_fill(0, absent, 0).float()
    return whole


def place_rows(tokens: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Copy each token to the rows of `out` that its `slots` [n, top_k] name; -1: none. No row is named twice."""
    if tokens.device.type == "cuda":
        from stepwell_kernels.dispatch.device.places import place_rows_cuda

        place_rows_cuda(tokens, slots, out)
        return
    token, column = torch.nonzero(slots >= 0, as_tuple=True)
    out.index_copy_(0, slots[token, column], tokens.index_select(0, token))


@dataclass(frozen=True, slots=True)
class Routes:
    """Tokens sorted by the ranks that they have to reach, then by token; each once a rank."""

    tokens: torch.Tensor
    """[ranks * n], int64: which each is; behind the last one 0."""
    slots: torch.Tensor
    """[n, ranks], int64: where a token went for each rank; -1: it has no expert there."""
    sizes: torch.Tensor
    """[ranks, 1 + experts of a rank], int64: tokens for each rank, and pairs for each of its experts."""


def to_ranks(experts: torch.Tensor, ranks: int, share: int) -> Routes:
    """Where the tokens that `experts` [n, top_k] name have to go, where each rank has `share` experts."""
    n = len(experts)
    there = experts.new_zeros((n, ranks + 1), dtype=torch.bool)
    there.scatter_(1, torch.where(experts < 0, ranks, experts // share), True)
    there = there[:, :ranks].t()
    places = there.reshape(-1).cumsum(0).view(ranks, n) - 1
    tokens = experts.new_zeros(ranks * n + 1)
    each = torch.arange(n, device=experts.device).expand(ranks, n)
    tokens.scatter_(0, torch.where(there, places, ranks * n).reshape(-1), each.reshape(-1))
    pairs = experts.new_zeros(ranks * share + 1)
    named = torch.where(experts < 0, ranks * share, experts).reshape(-1)
    pairs.scatter_add_(0, named, torch.ones_like(named))
    sizes = torch.cat([there.sum(1, keepdim=True), pairs[:-1].view(ranks, share)], 1)
    return Routes(tokens[:-1], torch.where(there, places, -1).t(), sizes)


def local(experts: torch.Tensor, rank: int, share: int) -> torch.Tensor:
    """Experts numbered as a rank has them, int64; -1: elsewhere, or none."""
    here = experts.long() - rank * share
    return torch.where((experts < 0) | (here < 0) | (here >= share), -1, here)
