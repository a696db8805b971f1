"""Small models with latent attention, of several families."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

LATENT, TURNED = 24, 8
SIZES = dict(
    vocab_size=300,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=LATENT,
    qk_rope_head_dim=TURNED,
    qk_nope_head_dim=12,
    v_head_dim=16,
    max_position_embeddings=512,
    initializer_range=0.15,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=0,
)
EXPERTS = dict(
    moe_intermediate_size=32,
    first_k_dense_replace=1,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    n_group=2,
    topk_group=1,
)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
}
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "deepseek-v2-lite": lambda: transformers.DeepseekV2Config(
        **SIZES, **EXPERTS, q_lora_rank=None, topk_method="greedy"
    ),
    "deepseek-v2": lambda: transformers.DeepseekV2Config(
        **SIZES, **EXPERTS, q_lora_rank=20, topk_method="group_limited_greedy", rope_parameters=YARN
    ),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(**SIZES, **EXPERTS, q_lora_rank=20, rope_parameters=YARN),
    "deepseek-v3-halves": lambda: transformers.DeepseekV3Config(
        **SIZES, **EXPERTS, q_lora_rank=None, rope_interleave=False
    ),
    "glm4-moe-lite": lambda: transformers.Glm4MoeLiteConfig(**SIZES, **EXPERTS, q_lora_rank=20),
    "longcat": lambda: transformers.LongcatFlashConfig(
        **{**SIZES, "num_hidden_layers": 2},
        num_layers=1,
        head_dim=TURNED,
        ffn_hidden_size=64,
        expert_ffn_hidden_size=32,
        moe_topk=2,
        zero_expert_num=1,
        n_routed_experts=4,
        q_lora_rank=20,
    ),
    "minicpm3": lambda: transformers.MiniCPM3Config(**SIZES, q_lora_rank=20),
}


@pytest.fixture(scope="session")
def latent(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Callable[[str], Path]:
    """The folder of a small model with random weights, the same each time; its tokenizer is another small model's."""
    root = tmp_path_factory.mktemp("latent")

    def make(family: str) -> Path:
        if (folder := root / family).exists():
            return folder
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 1 and "norm" in name:
                    weight.uniform_(0.5, 1.5)
                elif name.endswith("gate.weight"):
                    weight.normal_(std=0.5)
        model.save_pretrained(folder)
        for path in tiny("llama").glob("tokenizer*.json"):
            shutil.copy(path, folder)
        return folder

    return make
