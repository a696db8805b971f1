"""The fused kernels against their plain twins: in Triton's interpreter on CPU, in bfloat16 on a GPU."""

from __future__ import annotations

import pytest
import torch

from stepwell_kernels.fused import Norm, Spread, reference
from stepwell_kernels.paged.place import Place, Tables

pytest.importorskip("triton")

from stepwell_kernels.fused.device import choice, gates, norms, rotary, skinny, turns
from stepwell_kernels.fused.device.plans import Plan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = torch.bfloat16 if torch.cuda.is_available() else torch.float32
CLOSE = {"rtol": 2e-2, "atol": 2e-2} if torch.cuda.is_available() else {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rand(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(DEVICE, KIND)


def poison() -> None:
    """Leave NaN where the next `empty` may look, so that what a kernel does not write shows."""
    torch.full((1 << 16,), float("nan"), device=DEVICE)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (3, 96), (2, 1000)])
@pytest.mark.parametrize(("offset", "late"), [(0.0, False), (1.0, True), (0.0, True)])
def test_norms_agree(rows: int, dim: int, offset: float, late: bool) -> None:
    x, residual, weight, before = rand(rows, dim), rand(rows, dim), rand(dim), Norm(rand(dim), 1e-6, offset, late)
    close(norms.rms_norm(x, weight, 1e-5, offset, late), reference.rms_norm(x, weight, 1e-5, offset, late))
    close(norms.rms_norm(x, None, 1e-5), reference.rms_norm(x, None, 1e-5))
    for first in (None, before):
        found = norms.add_rms_norm(x, residual, weight, 1e-5, offset, late, first)
        wanted = reference.add_rms_norm(x, residual, weight, 1e-5, offset, late, first)
        for one, other in zip(found, wanted, strict=True):
            close(one, other)


def test_norms_take_slices_and_more_dimensions() -> None:
    wide, weight = rand(2, 3, 40), rand(24)
    close(norms.rms_norm(wide[..., 8:32], weight, 1e-5), reference.rms_norm(wide[..., 8:32], weight, 1e-5))


@pytest.mark.parametrize(("tokens", "pairs", "spread"), [(1, 64, "behind"), (5, 24, "once"), (3, 5, "beside")])
def test_turns_agree_near_and_far(tokens: int, pairs: int, spread: Spread) -> None:
    positions = torch.tensor([131071, 0, 1, 17, 40000][:tokens], device=DEVICE)
    frequencies = 1e4 ** -(torch.arange(pairs, device=DEVICE) / pairs)
    poison()
    found = turns.turns(positions, frequencies, 1.3, KIND, spread)
    for one, other in zip(found, reference.turns(positions, frequencies, 1.3, KIND, spread), strict=True):
        close(one, other)


@pytest.mark.parametrize("vocab", [1, 300, choice.PIECE, choice.PIECE + 1, 9000])
def test_the_most_likely_is_the_first_of_the_highest_and_is_left_for_its_slot(vocab: int) -> None:
    logits = rand(6, vocab)
    logits[1] = -logits[1].abs() - 1  # all below zero
    logits[2, vocab // 2 :] = logits[2].max()
    logits[3] = torch.tensor([-0.0, 0.0], device=DEVICE).repeat(vocab)[:vocab]
    logits[4] = float("-inf")
    logits[5, vocab // 3] = float("nan")
    slots = torch.tensor([4, 0, 2, 7, 6, 1], dtype=torch.int32, device=DEVICE)
    last = torch.full((9,), -5, dtype=torch.int32, device=DEVICE)
    wanted = logits.argmax(-1)
    assert choice.most_likely(logits, slots, last).tolist() == wanted.tolist()
    assert last[slots].tolist() == wanted.tolist()
    assert [int(last[slot]) for slot in (3, 5, 8)] == [-5] * 3
    assert choice.most_likely(logits).tolist() == wanted.tolist()


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("inter", [16, 100, 2100])
def test_gates_agree(act: str, inter: int) -> None:
    x = rand(3, 2 * inter, scale=3)
    close(gates.gated(x, act), reference.gated(x, act))


@pytest.mark.parametrize(("dim", "rot", "value_dim"), [(16, 16, 16), (24, 8, 12), (80, 80, 80)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_agree_and_land_in_their_pages(
    dim: int, rot: int, value_dim: int, interleaved: bool, normed: bool
) -> None:
    tokens, heads, kv = 4, 6, 2
    merged = rand(tokens, heads * dim + kv * (dim + value_dim))
    q, k, v = merged.split([heads * dim, kv * dim, kv * value_dim], -1)
    q, k, v = q.view(tokens, heads, dim), k.view(tokens, kv, dim), v.view(tokens, kv, value_dim)
    cos, sin = rand(tokens, rot), rand(tokens, rot)
    q_norm, k_norm = (Norm(rand(dim), 1e-6, 1.0, True), Norm(None, 1e-5)) if normed else (None, None)
    pages = torch.tensor([[3, 1, -1], [0, 4, 2], [-1, -1, -1]], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([1, 1, 2, 0], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([3, 4, 0, 5], device=DEVICE)

    def place() -> Place:
        stored = (torch.full((6, 4, kv, size), 7.0, device=DEVICE, dtype=KIND) for size in (dim, value_dim))
        return Place(*stored, Tables(pages, 4), slots, positions)

    found, wanted = place(), place()
    got = rotary.rotate_and_write(q, k, v, cos, sin, found, q_norm, k_norm, interleaved)
    close(got, reference.rotate_and_write(q, k, v, cos, sin, wanted, q_norm, k_norm, interleaved))
    close(found.keys, wanted.keys)
    close(found.values, wanted.values)
    assert int((wanted.keys != 7).any(-1).sum()) == 3 * kv
    for one, other in zip(
        rotary.rotate(q, k, cos, sin, q_norm, k_norm, interleaved),
        reference.rotate(q, k, cos, sin, q_norm, k_norm, interleaved),
        strict=True,
    ):
        close(one, other)


PLANS = [
    Plan(rows=4, cols=64, stages=1, warps=4),
    Plan(rows=16, cols=32, stages=2, warps=4, tokens=16),
    Plan(rows=32, cols=32, stages=2, warps=4, tokens=16, split=3),
]


@pytest.mark.parametrize("plan", PLANS, ids=["sum", "dot", "split"])
@pytest.mark.parametrize("act", [None, "silu"])
@pytest.mark.parametrize(("rows", "cols"), [(32, 192), (41, 100)])
def test_products_agree(plan: Plan, act: str | None, rows: int, cols: int) -> None:
    tokens = 1 if plan.tokens == 0 else 5
    x, weight = rand(tokens, cols), rand(rows * (2 if act else 1), cols, scale=0.1)
    bias = rand(weight.shape[0])
    residual = None if act else rand(tokens, rows)
    if plan.split > 1:
        if act:
            return
        poison()
        parts = skinny.launch_product(x, weight, plan)
        assert parts.shape == (plan.split, tokens, rows)
        found = skinny.join(parts, KIND, bias, residual)
        close(found, reference.linear(x, weight, bias, residual))
        total = norms.launch_norm(parts, residual, KIND, norm=Norm(rand(rows), 1e-5), bias=bias)[1]
        close(total, found)
        return
    for some, more in ((None, None), (bias, residual)):
        poison()
        found = skinny.launch_product(x, weight, plan, act, some, more)
        wanted = reference.gated_linear(x, weight, act, some) if act else reference.linear(x, weight, some, more)
        close(found, wanted)


def test_split_products_rotate() -> None:
    tokens, heads, kv, dim, cols = 3, 4, 2, 16, 96
    x, weight, bias = rand(tokens, cols), rand((heads + 2 * kv) * dim, cols, scale=0.1), rand((heads + 2 * kv) * dim)
    cos, sin = rand(tokens, dim), rand(tokens, dim)
    sizes = [heads * dim, kv * dim, kv * dim]
    parts = skinny.launch_product(x, weight, PLANS[-1])
    q, k, v = (part.unflatten(-1, (-1, dim)) for part in parts.split(sizes, -1))
    of_q, of_k, of_v = bias.split(sizes)
    pages = torch.tensor([[0, 1], [-1, -1]], dtype=torch.int32, device=DEVICE)
    slots, positions = torch.zeros(tokens, dtype=torch.int32, device=DEVICE), torch.arange(tokens, device=DEVICE)

    def place() -> Place:
        stored = (torch.full((2, 4, kv, dim), 7.0, device=DEVICE, dtype=KIND) for _ in range(2))
        return Place(*stored, Tables(pages, 4), slots, positions)

    found, wanted = place(), place()
    got = rotary.launch_rotate(q, k, v, cos, sin, None, found, KIND, None, None, False, (of_q, of_k, of_v))
    whole = reference.linear(x, weight, bias).split(sizes, -1)
    close(got, reference.rotate_and_write(*(part.unflatten(-1, (-1, dim)) for part in whole), cos, sin, wanted))
    close(found.keys, wanted.keys)
    close(found.values, wanted.values)
