"""Routing arithmetic against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepwell_kernels.dispatch.permute import by_expert, local, place_rows, sum_rows, to_ranks


def experts_of(n: int, top_k: int, count: int, seed: int, missing: float = 0.3) -> np.ndarray:
    dice = np.random.default_rng(seed)
    experts = np.argsort(dice.random((n, count)), axis=1)[:, :top_k]
    experts[dice.random((n, top_k)) < missing] = -1
    return experts


@pytest.mark.parametrize("n", [0, 1, 7, 100])
@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
def test_pairs_are_sorted_by_expert_then_token(n: int, missing: float) -> None:
    experts = experts_of(n, 3, 8, n, missing)
    order = by_expert(torch.from_numpy(experts), 8)
    right = [(e, token) for e in range(8) for token in range(n) if e in experts[token]]
    assert order.counts.tolist() == [int((experts == e).sum()) for e in range(8)]
    assert order.tokens[: len(right)].tolist() == [token for _, token in right]
    for token, row in enumerate(experts):
        for at, e in enumerate(row.tolist()):
            slot = int(order.slots[token, at])
            assert slot == (-1 if e < 0 else right.index((e, token)))


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_summed_where_slots_say(weighted: bool) -> None:
    dice = np.random.default_rng(0)
    rows = dice.standard_normal((20, 6)).astype(np.float32)
    rows[3] = np.nan
    slots = experts_of(9, 4, 20, 2)
    slots[slots == 3] = -1
    weights = dice.random((9, 4)).astype(np.float32)
    given = torch.from_numpy(weights) if weighted else None
    sums = sum_rows(torch.from_numpy(rows), torch.from_numpy(slots), given).numpy()
    share = np.where(slots >= 0, weights if weighted else 1.0, 0.0)
    right = [sum((share[n, k] * rows[s] for k, s in enumerate(slots[n]) if s >= 0), np.zeros(6)) for n in range(9)]
    np.testing.assert_allclose(sums, np.array(right), rtol=1e-5, atol=1e-6)


def test_no_rows_and_no_tokens() -> None:
    assert sum_rows(torch.empty(0, 4), torch.full((3, 2), -1)).tolist() == [[0.0] * 4] * 3
    assert sum_rows(torch.empty(5, 4), torch.empty(0, 2, dtype=torch.int64)).shape == (0, 4)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_sums_as_torch_does(weighted: bool, dtype: torch.dtype) -> None:
    sums = pytest.importorskip("stepwell_kernels.dispatch.device.sums")
    dice = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 1100, generator=dice).to(dtype)
    rows[3] = float("nan")
    slots = experts_of(9, 4, 20, 2)
    slots[slots == 3] = -1
    weights = torch.rand(9, 4, generator=dice) if weighted else None
    there = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given = (rows.to(there), torch.from_numpy(slots).to(there), None if weights is None else weights.to(there))
    out = sums.sum_rows_cuda(*given)
    torch.testing.assert_close(out.cpu(), sum_rows(rows, torch.from_numpy(slots), weights), rtol=1e-2, atol=1e-2)
    assert sums.sum_rows_cuda(given[0], given[1][:0], None).shape == (0, 1100)


@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
def test_a_token_goes_once_to_each_rank_that_it_has_to_reach(n: int, missing: float) -> None:
    ranks, share = 4, 3
    experts = experts_of(n, 5, ranks * share, n, missing)
    routes = to_ranks(torch.from_numpy(experts), ranks, share)
    right = [(r, token) for r in range(ranks) for token in range(n) if r in [e // share for e in experts[token]]]
    assert routes.tokens[: len(right)].tolist() == [token for _, token in right]
    assert routes.sizes[:, 0].tolist() == [sum(r == rank for r, _ in right) for rank in range(ranks)]
    assert routes.sizes[:, 1:].flatten().tolist() == [int((experts == e).sum()) for e in range(ranks * share)]
    for token in range(n):
        slots = [right.index((r, token)) if (r, token) in right else -1 for r in range(ranks)]
        assert routes.slots[token].tolist() == slots


def test_experts_are_numbered_as_a_rank_has_them() -> None:
    assert local(torch.tensor([[-1, 0, 3, 5, 6]]), rank=1, share=3).tolist() == [[-1, -1, 0, 2, -1]]


def test_the_kernel_places_rows_as_torch_does() -> None:
    places = pytest.importorskip("stepwell_kernels.dispatch.device.places")
    there = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = torch.randn(6, 1300)[:, :1100]
    slots = torch.tensor([[0, 5], [-1, 2], [-1, -1], [7, -1], [1, 3], [4, -1]])
    right, out = torch.zeros(9, 1100), torch.zeros(9, 1100, device=there)
    place_rows(tokens, slots, right)
    places.place_rows_cuda(tokens.to(there), slots.to(there), out)
    assert torch.equal(out.cpu(), right)
    assert torch.equal(right[5], tokens[0]) and right[6].abs().sum() == 0
