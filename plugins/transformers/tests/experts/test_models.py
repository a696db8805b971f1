"""Every kind of experts, spread over ranks, answers what the whole model answers by its own library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stepwell import ConfigError, Format

TOKENS = torch.arange(23)[None] * 37 % 300
FAMILIES = ("mixtral", "qwen3-moe", "qwen2-moe", "gpt-oss", "deepseek-v3")


def near(got: list[torch.Tensor], want: torch.Tensor) -> None:
    assert all(torch.equal(got[0], other) for other in got[1:]), "all ranks have the same bits"
    assert (got[0] - want).abs().max() <= 1e-4 * want.abs().max()


def answer(model: Any, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=tokens, use_cache=False).logits


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_answer_what_the_whole_model_answers(
    family: str, size: int, whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    model = whole_of(family)
    format = list(Format)[(len(family) + size) % 3]
    ranks = spread_over(model, size, format=format)
    near(ranks.logits(TOKENS), answer(model))
    near(ranks.logits(TOKENS[:, :1], prefill=False), answer(model, TOKENS[:, :1]))
    own, experts = sum(weight.numel() for weight in ranks.models[0].parameters()), ranks.experts[0]
    assert experts.local == 8 // size
    assert size == 1 or own < sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_replicas_in_any_slots_change_nothing(
    family: str, whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    """Weights move between steps, and the map with them; a token goes to any of an expert's replicas."""
    model = whole_of(family)
    ranks = spread_over(model, 4, spare=4)
    want = answer(model)
    near(ranks.logits(TOKENS), want)
    before = ranks.experts[0].placement
    assert before.shape[1] == 12
    rng = np.random.default_rng(3)
    for layer, row in enumerate(before):
        new = rng.permutation(np.concatenate([np.arange(8), rng.choice(8, 4)])).astype(np.int32)
        move(ranks, layer, row, new)
    near(ranks.logits(TOKENS), want)
    assert not np.array_equal(ranks.experts[2].placement, before)


def move(ranks: Any, layer: int, old: np.ndarray, new: np.ndarray) -> None:
    """Put experts where `new` has them, out of wherever one stood."""
    local = ranks.experts[0].local
    homes = [ranks.experts[slot // local].weights_of(layer, slot % local) for slot in range(len(new))]
    kept = {int(expert): [one.clone() for one in homes[slot]] for slot, expert in enumerate(old)}
    with torch.no_grad():
        for home, expert in zip(homes, new, strict=True):
            for mine, its in zip(home, kept[int(expert)], strict=True):
                mine.copy_(its)
    for experts in ranks.experts:
        experts.place(layer, new)


def test_another_map_without_its_weights_is_noticed(
    whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    """What the test above would say if the map that was written were not the one in use."""
    model = whole_of("mixtral")
    ranks = spread_over(model, 2)
    for experts in ranks.experts:
        experts.place(0, np.arange(8, dtype=np.int32)[::-1].copy())
    got = ranks.logits(TOKENS)[0]
    assert (got - answer(model)).abs().max() > 1e-2 * got.abs().max()


def test_without_its_own_map_one_rank_computes_by_the_librarys_code(
    whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    """The proof of a model compares ours with its own, where one rank has all experts."""
    ranks = spread_over(whole_of("gpt-oss"), 1, spare=2, calls=(calls := []))
    experts, model = ranks.experts[0], ranks.models[0]
    want = ranks.logits(TOKENS)[0]
    made = len(calls)
    assert made
    with experts.own():
        near([answer(model)], want)
    assert len(calls) == made
    near([answer(model)], want)
    assert len(calls) > made


def test_sixteen_bits_are_dispatched_as_they_are(whole_of: Callable[..., Any], spread_over: Callable[..., Any]) -> None:
    model = whole_of("gpt-oss").to(torch.bfloat16)
    ranks = spread_over(model, 2, format=Format.SORTED)
    got, want = ranks.logits(TOKENS), answer(model)
    assert torch.equal(got[0], got[1])
    assert got[0].dtype == torch.bfloat16
    assert (got[0] - want).abs().max() <= 5e-2 * want.abs().max()


def test_weights_of_another_kind_are_refused(whole_of: Callable[..., Any], spread_over: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"runner.dtype: tokens in torch.float16 are not dispatched"):
        spread_over(whole_of("mixtral").to(torch.float16), 1)
