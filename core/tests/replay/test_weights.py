"""Weights counted from configs: the known models, and each way in which families say which layers have experts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stepwell.models import read_shape
from stepwell.replay.weights import Weights, read_weights, timing_of
from stepwell.schedule.presets import PRESETS

LLAMA: Mapping[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
SMALL: Mapping[str, object] = {
    "model_type": "test",
    "num_hidden_layers": 4,
    "hidden_size": 10,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 20,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}
ATTENTION = 10 * (2 * 4 + 4 + 4 + 2 * 4)
DENSE = 3 * 10 * 20
EXPERT = 3 * 10 * 6
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
ROUTER = 10 * 8


def weights(**fields: object) -> Weights:
    config = {**SMALL, **fields}
    return read_weights(config, read_shape(config))


def test_the_presets_model_is_its_config() -> None:
    preset = PRESETS["h200-llama8b"]
    timing, held = timing_of(read_shape(LLAMA), LLAMA, preset)
    assert (timing.kv_bytes, timing.pair_flops, timing.layers) == (preset.kv_bytes, preset.pair_flops, preset.layers)
    assert timing.parameters == pytest.approx(preset.parameters, rel=0.01)
    assert timing.weight_bytes == pytest.approx(preset.weight_bytes, rel=0.01)
    assert held == pytest.approx(8.03e9 * 2, rel=0.01)
    assert (timing.flops, timing.bandwidth, timing.link) == (preset.flops, preset.bandwidth, preset.link)
    assert timing.narrow == ()


def test_a_dense_model_by_hand() -> None:
    every = 1000 + 4 * (ATTENTION + DENSE)
    assert weights() == Weights(every, every * 2, 0.0, 0.0, every * 2)
    assert weights(tie_word_embeddings=False).held_bytes == every * 2 + 2000
    assert weights(dtype="float32").always_bytes == every * 4


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, 4),
        ({"first_k_dense_replace": 1}, 3),
        ({"decoder_sparse_step": 2}, 2),
        ({"mlp_only_layers": [0, 3]}, 2),
        ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
        ({"moe_layer_freq": 2}, 2),
        ({"moe_layers": [2]}, 1),
        ({"interleave_moe_layer_step": 4}, 1),
    ],
)
def test_layers_with_experts_by_hand(fields: Mapping[str, object], layers: int) -> None:
    found = weights(**EXPERTS, **fields)
    every = 1000 + 4 * ATTENTION + (4 - layers) * DENSE + layers * ROUTER
    assert found.active == every + layers * 2 * EXPERT
    assert (found.always_bytes, found.expert_bytes) == (2 * every, 2 * layers * 8 * EXPERT)
    assert (found.expert_share, found.experts, found.expert_parameters) == (0.25, 8, layers * 8 * EXPERT)


def test_shared_experts_are_for_every_token() -> None:
    plain = weights(**EXPERTS).active
    assert weights(**EXPERTS, n_shared_experts=2).active == plain + 4 * 2 * EXPERT
    assert weights(**EXPERTS, shared_expert_intermediate_size=7).active == plain + 4 * 3 * 10 * 7


def test_small_formats() -> None:
    plain = weights(**EXPERTS)
    small = weights(**EXPERTS, quantization_config={"quant_method": "mxfp4"})
    assert (small.always_bytes, small.expert_bytes) == (plain.always_bytes, plain.expert_bytes / 2 * 17 / 32)
    half = weights(quantization_config={"quant_method": "fp8"})
    assert half.always_bytes == weights().always_bytes / 2
    assert weights(quantization_config={"quant_method": "gptq", "bits": 4}).always_bytes == weights().always_bytes / 4


def test_latent_attention_by_hand() -> None:
    """A latent of 6 and a rotary key of 2, queries of 3 + 2 by way of 5, values of 4, for 2 heads."""
    fields = {"kv_lora_rank": 6, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3, "v_head_dim": 4, "q_lora_rank": 5}
    config = {**SMALL, **fields}
    attention = 5 * (10 + 2 * 5) + 10 * (6 + 2) + 6 * 2 * (3 + 4) + 2 * 4 * 10
    assert weights(**fields).active == 1000 + 4 * (attention + DENSE)
    timing, _ = timing_of(read_shape(config), config, PRESETS["h200-llama8b"])
    assert timing.kv_bytes == 4 * (6 + 2) * 2
    assert timing.pair_flops == 4 * 2 * 2 * (8 + 6)


def test_windows_have_heads_of_their_own() -> None:
    config = {
        **SMALL,
        **{"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8},
        **{"swa_num_attention_heads": 6, "swa_num_key_value_heads": 3},
    }
    timing, _ = timing_of(read_shape(config), config, PRESETS["h200-llama8b"])
    (narrow,) = timing.narrow
    assert (timing.kv_bytes, timing.pair_flops) == (2 * 8 * 2, 2 * 4 * 2 * 4)
    assert (narrow.kv_bytes, narrow.pair_flops) == (2 * 3 * 8 * 2, 2 * 4 * 6 * 4)
    assert timing.parameters == 1000 + 4 * DENSE + 2 * ATTENTION + 2 * 10 * (6 * 8 + 3 * 8)


def test_what_a_published_config_leaves_out_is_the_familys_usual_value() -> None:
    said = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": said}
    counted = read_weights(config, read_shape(config))
    assert counted.active == pytest.approx(3.88e9, rel=0.01)
    assert counted.held_bytes == counted.always_bytes, "embeddings are tied"
