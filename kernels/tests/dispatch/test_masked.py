"""The kernel for filled rows against torch, one expert at a time."""

from __future__ import annotations

import pytest
import torch

masked = pytest.importorskip("stepwell_kernels.dispatch.device.masked")
THERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, ROOM, INNER, OUTER = 3, 70, 256, 136


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_filled_rows_are_multiplied(transposed: bool, biased: bool, scaled: bool) -> None:
    dice = torch.Generator().manual_seed(0)
    counts = torch.tensor([0, 66, 5])
    x = torch.full((EXPERTS, ROOM, INNER), float("nan"))
    for expert, count in enumerate(counts.tolist()):
        x[expert, :count] = torch.randn(count, INNER, generator=dice)
    weight = torch.randn(EXPERTS, INNER, OUTER, generator=dice)
    bias = torch.randn(EXPERTS, OUTER, generator=dice) if biased else None
    scales = torch.rand(EXPERTS, ROOM, INNER // 128, generator=dice) if scaled else None
    laid = weight.to(THERE) if transposed else weight.transpose(1, 2).contiguous().to(THERE).transpose(1, 2)
    given = [None if one is None else one.to(THERE) for one in (bias, scales)]
    out = masked.masked_product(x.to(THERE), counts.to(THERE), laid, *given).cpu()
    whole = x if scales is None else x * scales.repeat_interleave(128, 2)
    for expert, count in enumerate(counts.tolist()):
        right = whole[expert, :count] @ weight[expert] + (0 if bias is None else bias[expert])
        torch.testing.assert_close(out[expert, :count], right, rtol=1e-4, atol=1e-3)


def test_sixteen_bits_and_an_inner_dimension_that_fills_no_tile() -> None:
    dice = torch.Generator().manual_seed(1)
    dtype = torch.bfloat16 if THERE.type == "cuda" else torch.float16  # the interpreter multiplies no bfloat16
    x = torch.randn(2, 9, 40, generator=dice).to(dtype)
    weight = (torch.randn(2, 40, 24, generator=dice) / 6).to(dtype)
    out = masked.masked_product(x.to(THERE), torch.tensor([9, 4]).to(THERE), weight.to(THERE)).cpu()
    for expert, count in enumerate([9, 4]):
        torch.testing.assert_close(out[expert, :count], x[expert, :count] @ weight[expert], rtol=2e-2, atol=2e-2)


def test_no_room() -> None:
    none = torch.empty(2, 0, 128, device=THERE)
    assert masked.masked_product(none, torch.zeros(2), torch.empty(2, 128, 24, device=THERE)).shape == (2, 0, 24)
