"""Every kind of model cut into parts answers what the whole one answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stepwell_kernels.collective import Group, thread_groups
from stepwell_transformers.geometry import Geometry, geometry
from stepwell_transformers.spread import Plan, install, plan

TOKENS = torch.arange(24)[None] * 37 % 300
EVEN = (
    *("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3-moe", "gpt-oss", "gemma2", "gemma3"),
    *("llama4", "mimo", "qwen3-sliding", "cohere2"),
)
"""Kinds whose KV heads are cut."""


def whole_model(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def planned(model: torch.nn.Module, size: int) -> tuple[Plan, Geometry]:
    shape = geometry(model.config, "it")
    groups = [group.layers for group in shape.shape.groups()]
    return plan(model, size, shape.shape.layers, groups), shape


def cut(model: torch.nn.Module, found: Plan, groups: Sequence[Group]) -> list[torch.nn.Module]:
    parts = [copy.deepcopy(model) for _ in groups]
    for part, group in zip(parts, groups, strict=True):
        install(part, found, group)
    return parts


def answers(parts: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """The logits of each rank, which are threads here."""

    def run(part: torch.nn.Module) -> torch.Tensor:
        with torch.inference_mode():
            return part(input_ids=TOKENS, use_cache=False).logits

    with ThreadPoolExecutor(len(parts)) as threads:
        return list(threads.map(run, parts))


@pytest.mark.parametrize("kind", [*EVEN, "olmo3"])
def test_ranks_answer_what_the_whole_model_answers(kind: str, tiny: Callable[[str], Path]) -> None:
    model = whole_model(tiny(kind))
    with torch.inference_mode():
        want = model(input_ids=TOKENS, use_cache=False).logits
    found, _ = planned(model, 2)
    got = answers(cut(model, found, thread_groups(2)))
    assert torch.equal(got[0], got[1])
    assert (got[0] - want).abs().max() <= 1e-4 * want.abs().max()
    assert bool(found.whole) == (kind not in EVEN)
    assert found.cuts_layers
