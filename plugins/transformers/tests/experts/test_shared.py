"""Shared experts are computed while tokens are under way, whichever a block asks for first, and no bit differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stepwell_transformers.experts import Told
from stepwell_transformers.experts.shared import NAMES

TOKENS = torch.arange(23)[None] * 37 % 300


def noted(model: Any, calls: list[str]) -> None:
    """Write down when shared experts of a model are computed."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in NAMES:
            own = module.forward
            module.forward = lambda x, own=own: calls.append("shared") or own(x)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("family", ["qwen2-moe", "deepseek-v3"])
def test_they_are_computed_between_start_and_finish(
    family: str, size: int, whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    """A block of the first family asks for its shared experts before the routed ones, one of the other behind them."""
    model = whole_of(family)
    apart = spread_over(model, size, shared=False).logits(TOKENS)
    calls: list[str] = []
    if size == 1:
        noted(model, calls)
    ranks = spread_over(model, size, calls=calls if size == 1 else None)
    layers = ranks.experts[0].layers
    assert all(layer.shared is not None and layer.shared.trusted for layer in layers)
    calls.clear()
    got = ranks.logits(TOKENS)
    assert all(torch.equal(one, other) for one, other in zip(got, apart, strict=True)), "the same bits"
    if size == 1:
        assert calls == [f"dispatch {TOKENS.numel()}", "shared", "arrived", "combined"] * len(layers)


def test_they_are_computed_once_where_tokens_go_in_rounds(
    whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    model = whole_of("deepseek-v3")
    calls: list[str] = []
    noted(model, calls)
    ranks = spread_over(model, 1, calls=calls, capacity=10)
    calls.clear()
    ranks.logits(TOKENS)
    assert calls.count("shared") == 2, "in each of two layers"
    assert calls.count("combined") == 2 * 3


@pytest.mark.parametrize("family", ["qwen2-moe", "deepseek-v3"])
def test_another_batch_on_the_way_has_its_own(
    family: str, whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    """Two forwards through one model, each waiting for the other in every layer."""
    greenlet = pytest.importorskip("greenlet")
    ranks = spread_over(whole_of(family), 1)
    model, experts = ranks.models[0], ranks.experts[0]
    halves = TOKENS[:, :9], TOKENS[:, 9:]
    want = [ranks.logits(half)[0] for half in halves]
    workers: list[Any] = []
    got: dict[int, torch.Tensor] = {}

    def go(which: int) -> None:
        def turn() -> None:
            if not (other := workers[1 - which]).dead:
                other.switch(*(() if other else (1 - which,)))

        with experts.running(Told(turn=turn), halves[which].numel()):
            got[which] = model(input_ids=halves[which], use_cache=False).logits

    workers += [greenlet.greenlet(go), greenlet.greenlet(go)]
    with torch.inference_mode():
        workers[0].switch(0)
        while not all(worker.dead for worker in workers):
            next(worker for worker in workers if not worker.dead).switch()
    assert all(torch.equal(got[which], want[which]) for which in range(2))


class Reading(nn.Module):
    """A block that reads its shared experts' answer before it routes."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.experts, self.gate, self.shared_experts = block.experts, block.gate, block.shared_experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside = self.shared_experts(x) * 2
        _, weights, chosen = self.gate(x)
        return self.experts(x.view(-1, x.shape[-1]), chosen, weights).view(x.shape) + beside


class Changing(Reading):
    """A block that hands something else to its shared experts than to the routed ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, chosen = self.gate(x)
        return self.experts(x.view(-1, x.shape[-1]), chosen, weights).view(x.shape) + self.shared_experts(x * 2)


@pytest.mark.parametrize("kind", [Reading, Changing])
def test_a_block_of_another_kind_answers_as_ever(
    kind: type[Reading], whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    model = whole_of("deepseek-v3")
    for layer in model.model.layers[1:]:
        layer.mlp = kind(layer.mlp)
    with torch.inference_mode():
        want = model(input_ids=TOKENS, use_cache=False).logits
    ranks = spread_over(model, 1)
    assert [layer.shared.trusted for layer in ranks.experts[0].layers] == [False] * 2
    (got,) = ranks.logits(TOKENS)
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()


class Deciding(Reading):
    """A block that hands something else to its shared experts where there are many tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, chosen = self.gate(x)
        given = x * 2 if x.shape[1] > 9 else x
        return self.experts(x.view(-1, x.shape[-1]), chosen, weights).view(x.shape) + self.shared_experts(given)


def test_what_was_made_early_is_not_taken_for_something_else(
    whole_of: Callable[..., Any], spread_over: Callable[..., Any]
) -> None:
    model = whole_of("deepseek-v3")
    for layer in model.model.layers[1:]:
        layer.mlp = Deciding(layer.mlp)
    with torch.inference_mode():
        want = model(input_ids=TOKENS, use_cache=False).logits
    ranks = spread_over(model, 1)
    assert all(layer.shared.trusted for layer in ranks.experts[0].layers)
    (got,) = ranks.logits(TOKENS)
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()
