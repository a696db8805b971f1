"""Products as models ask for them: any plan agrees with the plain twin, and which plan is taken."""

from __future__ import annotations

import pytest
import torch

from stepwell_kernels import fused
from stepwell_kernels.fused import Norm, reference
from stepwell_kernels.paged.place import Place, Tables

pytest.importorskip("triton")

from stepwell_kernels.fused.device import products
from stepwell_kernels.fused.device.plans import Plan, planned

WHOLE = Plan(rows=16, cols=32, stages=2, warps=4, tokens=16)
SPLIT = Plan(rows=16, cols=32, stages=2, warps=4, tokens=16, split=2)
SIZES = {"qkv": (6144, 4096), "o": (4096, 4096), "down": (4096, 14336), "head": (128256, 4096)}
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


DEVICE, KIND = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
CLOSE = {"rtol": 3e-2, "atol": 6e-2} if torch.cuda.is_available() else {"rtol": 1e-4, "atol": 1e-5}


def rand(*shape: int, scale: float = 1.0) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return made.to(DEVICE, KIND)


def close(found: object, wanted: object) -> None:
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("plan", [None, WHOLE, SPLIT], ids=["torch", "whole", "split"])
def test_every_plan_answers_the_same(plan: Plan | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_plan", lambda x, weight, sides: None if sides == 2 and plan == SPLIT else plan)
    x, weight, bias, residual = rand(2, 3, 48), rand(40, 48, scale=0.1), rand(40), rand(2, 3, 40)
    for norm in (None, Norm(rand(48), 1e-5), Norm(None, 1e-5), Norm(rand(48), 1e-6, 1.0, True)):
        close(products.linear(x, weight, bias, residual, norm), reference.linear(x, weight, bias, residual, norm))
        close(
            products.gated_linear(x, weight, "silu", bias, norm), reference.gated_linear(x, weight, "silu", bias, norm)
        )
    for before in (None, Norm(rand(40), 1e-5)):
        after = Norm(rand(40), 1e-5, 1.0, True)
        found = products.linear_add_norm(x, weight, residual, after, bias, before)
        close(found, reference.linear_add_norm(x, weight, residual, after, bias, before))


@pytest.mark.parametrize("plan", [None, WHOLE, SPLIT], ids=["torch", "whole", "split"])
@pytest.mark.parametrize("biased", [False, True])
def test_projections_land_in_their_pages(plan: Plan | None, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_plan", lambda *_: plan)
    heads = ((4, 16), (2, 16), (2, 8))
    x, weight = rand(3, 48), rand(112, 48, scale=0.1)
    bias = rand(112) if biased else None
    pages = torch.tensor([[1, 0], [-1, -1]], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([0, 0, 1], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([1, 2, 0], device=DEVICE)

    def place() -> Place:
        stored = (torch.full((2, 2, 2, dim), 7.0, device=DEVICE, dtype=KIND) for dim in (16, 8))
        return Place(*stored, Tables(pages, 2), slots, positions)

    found, wanted = place(), place()
    more = (x, weight, bias, heads, rand(3, 16), rand(3, 16))
    close(products.project_and_write(*more, found), reference.project_and_write(*more, wanted))
    close(found.keys, wanted.keys)
    close(found.values, wanted.values)


def test_parts_cover_the_inputs_and_fill_the_processors() -> None:
    for tokens in (1, 2, 3, 8, 16, 17, 32, 33, 64):
        for rows, cols in SIZES.values():
            plan = planned(tokens, rows, cols, False, 132)
            assert plan is not None
            assert (plan.tokens == 0) == (tokens == 1)
            assert plan.tokens == 0 or plan.tokens >= tokens
            assert plan.split * -(-rows // plan.rows) >= 0.7 * 132
        assert planned(tokens, 14336, 4096, True, 132) is not None
    assert planned(65, 4096, 4096, False, 132) is None
    assert planned(0, 4096, 4096, False, 132) is None


def test_small_weights_are_split_as_far_as_it_pays_and_large_ones_fill_the_processors_or_are_left() -> None:
    small = planned(8, 1024, 2048, False, 132)
    assert small is not None
    assert small.split == 4
    assert planned(64, 5120, 25600, False, 132) is None
    many = planned(8, 5120, 25600, False, 132)
    assert many is not None
    assert many.split == 3


def test_float32_products_stay_torchs() -> None:
    assert products._plan(torch.zeros(1, 64), torch.zeros(64, 64), 1) is None


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 31, 64, 65])
@pytest.mark.parametrize(("rows", "cols"), [(4096, 4096), (1000, 1096), (512, 14336)])
def test_products_agree_on_a_gpu(tokens: int, rows: int, cols: int) -> None:
    make = {"device": "cuda", "dtype": torch.bfloat16}
    x, weight = rand(tokens, cols).to(**make), rand(2 * rows, cols, scale=0.03).to(**make)
    residual, norm = rand(tokens, rows).to(**make), Norm(rand(cols).to(**make), 1e-5)
    torch.full((1 << 24,), float("nan"), device="cuda")
    for found, wanted in (
        (fused.linear(x, weight[:rows], None, residual), reference.linear(x, weight[:rows], None, residual)),
        (fused.linear(x, weight, norm=norm), reference.linear(x, weight, norm=norm)),
        (fused.gated_linear(x, weight, "silu"), reference.gated_linear(x, weight, "silu")),
    ):
        torch.testing.assert_close(found, wanted, rtol=3e-2, atol=6e-2)
        again = fused.gated_linear(x, weight, "silu")
        assert torch.equal(again, fused.gated_linear(x, weight, "silu"))
