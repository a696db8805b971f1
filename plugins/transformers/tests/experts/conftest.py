"""Ranks that are threads, with a dispatcher between them, and models spread over them."""

from __future__ import annotations

import copy
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

from stepwell import Part
from stepwell_kernels.collective import Group, Solo, thread_groups
from stepwell_transformers.experts.asked import Asked
from stepwell_transformers.experts.experts import Experts
from stepwell_transformers.experts.place import ExpertPlace
from stepwell_transformers.experts.settings import ExpertsSettings
from stepwell_transformers.geometry import geometry
from stepwell_transformers.model import plan_or_refuse
from stepwell_transformers.spread import Plan, install

from .doubles import Table, TableConfig, part_of

SMALL = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.15,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
LATENT = dict(q_lora_rank=20, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16)
EIGHT = dict(moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(**SMALL, **EIGHT, head_dim=16),
    "qwen2-moe": lambda: transformers.Qwen2MoeConfig(**SMALL, **EIGHT, shared_expert_intermediate_size=48),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **SMALL, head_dim=16, sliding_window=9, num_local_experts=8, num_experts_per_tok=2
    ),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(
        **{**SMALL, **LATENT, "num_key_value_heads": 4, "num_hidden_layers": 3},
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    ),
}
"""Experts with and without shared ones, biases, turned weights, interleaved gates, groups, and dense layers before."""


@pytest.fixture(scope="session")
def folder_of(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model with experts, the same each time."""
    root = tmp_path_factory.mktemp("experts")

    def make(family: str) -> Path:
        if (folder := root / family).exists():
            return folder
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 1 and "norm" in name:
                    weight.uniform_(0.5, 1.5)
                elif name.endswith(("sinks", "_bias", "router.bias", "gate.weight", "router.weight")):
                    weight.normal_(std=0.5)
        model.save_pretrained(folder)
        for path in tiny("llama").glob("tokenizer*.json"):
            shutil.copy(path, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def whole_of(folder_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """The same as a model, by its library's own code."""
    return lambda family: AutoModelForCausalLM.from_pretrained(
        folder_of(family), dtype=torch.float32, attn_implementation="eager"
    ).eval()


@dataclass
class Ranks:
    """A model's ranks, each with a part of it and its experts."""

    models: list[Any]
    experts: list[Experts]

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """What each rank answers, all at once."""
        with ThreadPoolExecutor(len(self.models)) as threads, torch.inference_mode():
            return list(threads.map(lambda rank: torch.inference_mode()(work)(rank), range(len(self.models))))

    def logits(self, tokens: torch.Tensor, **told: Any) -> list[torch.Tensor]:
        """Of a batch of one row, on each rank."""
        from stepwell_transformers.experts import Told

        def run(rank: int) -> torch.Tensor:
            with self.experts[rank].running(Told(**told), tokens.numel()):
                return self.models[rank](input_ids=tokens, use_cache=False).logits

        return self.each(run)


@pytest.fixture(scope="session")
def asked_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Asked]:
    """What a config would say on one of some ranks."""
    state = tmp_path_factory.mktemp("state")

    def make(
        table: Table, rank: int, *, spare: int = 0, tokens: int = 512, decode: Part[Any] | None = None, **config: Any
    ) -> Asked:
        log = logging.getLogger("stepwell.experts")
        place = ExpertPlace(rank, table.size, "", "cpu", time.monotonic, log, state)
        part = part_of(TableConfig(table, **config))
        return Asked("it", part, decode, ExpertsSettings(spare), place, tokens, min(tokens, 64), log)

    return make


@pytest.fixture(scope="session")
def table_part() -> Callable[..., Part[Any]]:
    return lambda table, provides=frozenset(), **config: part_of(TableConfig(table, **config), provides=provides)


@pytest.fixture(scope="session")
def table() -> Callable[[int], Table]:
    return Table


@pytest.fixture(scope="session")
def spread_over(asked_for: Callable[..., Asked]) -> Callable[..., Ranks]:
    """A model over so many ranks, attention and all."""

    def make(model: Any, size: int, *, shared: bool = True, **more: Any) -> Ranks:
        table = Table(size)
        groups: Sequence[Group] = thread_groups(size) if size > 1 else [Solo()]
        parts = [copy.deepcopy(model) for _ in groups]

        def take(rank: int) -> Experts:
            asked, part, group = asked_for(table, rank, **more), parts[rank], groups[rank]
            shape = geometry(model.config, "it")
            plan = Plan(1, {}, asked.cuts(part), frozenset(), frozenset())
            if size > 1:
                plan = plan_or_refuse(shape, size, "it", part, asked)
            install(part, plan, group)
            experts = Experts(part, asked, group)
            if shared:
                experts.overlap_shared()
            return experts

        with ThreadPoolExecutor(size) as threads:
            return Ranks(parts, list(threads.map(take, range(size))))

    return make
