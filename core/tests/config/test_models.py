"""What models' configs say of their attention: as published, and as transformers' classes print them."""

from __future__ import annotations

import re

import pytest

from stepwell.errors import ConfigError
from stepwell.models import read_shape
from stepwell.types import Chunked, Full, Window

GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
}
# gemma-3 leaves out of its text part what the class has as default.
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16},
}
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
}
GEMMA2_27B = {
    "model_type": "gemma2",
    "num_hidden_layers": 46,
    "hidden_size": 4608,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
        "no_rope_layers": [],
        "max_position_embeddings": 10485760,
    },
}
COMMAND_R7B = {
    "model_type": "cohere2",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "max_position_embeddings": 132096,
}
MISTRAL = {
    "model_type": "mistral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
}
QWEN2 = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "sliding_window": 32768,
    "max_window_layers": 21,
    "max_position_embeddings": 131072,
}
PHI3 = {
    "model_type": "phi3",
    "num_hidden_layers": 32,
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "sliding_window": 2047,
    "max_position_embeddings": 4096,
}
EXAONE4 = {
    "model_type": "exaone4",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "max_position_embeddings": 131072,
}
MIMO = {
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "hybrid_layer_pattern": [0 if n == 0 or (n + 1) % 6 == 0 else 1 for n in range(48)],
    "max_position_embeddings": 262144,
}
STEP = {
    "model_type": "step3p5",
    "num_hidden_layers": 45,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "sliding_window": 512,
    # Three more layers of this list predict further tokens.
    "layer_types": ["sliding_attention" if n % 4 else "full_attention" for n in range(48)],
    "max_position_embeddings": 262144,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 30,
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
    },
}
GEMMA3N = {
    "model_type": "gemma3n",
    "text_config": {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 30,
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_kv_shared_layers": 10,
        "sliding_window": 512,
    },
}


def groups(config):
    """Name, need, layers and bytes a token of each group."""
    return [(g.name, g.need, len(g.layers), g.token_bytes) for g in read_shape(config).groups()]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPT_OSS, [("full", Full(), 12, 12 * 2048), ("swa", Window(127), 12, 12 * 2048)]),
        (GEMMA3_4B, [("full", Full(), 5, 5 * 4096), ("swa", Window(1023), 29, 29 * 4096)]),
        (GEMMA3_27B, [("full", Full(), 10, 10 * 8192), ("swa", Window(1023), 52, 52 * 8192)]),
        (GEMMA2_27B, [("full", Full(), 23, 23 * 16384), ("swa", Window(4095), 23, 23 * 16384)]),
        (SCOUT, [("full", Full(), 12, 12 * 4096), ("chunked", Chunked(8192), 36, 36 * 4096)]),
        (COMMAND_R7B, [("full", Full(), 8, 8 * 4096), ("swa", Window(4095), 24, 24 * 4096)]),
        (MISTRAL, [("swa", Window(4095), 32, 32 * 4096)]),
        ({**MISTRAL, "sliding_window": None}, [("full", Full(), 32, 32 * 4096)]),
        ({**MISTRAL, "model_type": "mixtral", "sliding_window": None}, [("full", Full(), 32, 32 * 4096)]),
        ({**QWEN2, "use_sliding_window": False}, [("full", Full(), 28, 28 * 2048)]),
        (QWEN2, [("full", Full(), 28, 28 * 2048)]),
        (
            {**QWEN2, "use_sliding_window": True},
            [("full", Full(), 21, 21 * 2048), ("swa", Window(32767), 7, 7 * 2048)],
        ),
        (PHI3, [("swa", Window(2046), 32, 32 * 12288)]),
        ({**PHI3, "sliding_window": 262144, "max_position_embeddings": 131072}, [("full", Full(), 32, 32 * 12288)]),
        (EXAONE4, [("full", Full(), 16, 16 * 4096), ("swa", Window(4095), 48, 48 * 4096)]),
        (MIMO, [("full", Full(), 9, 9 * 2560), ("swa", Window(128), 39, 39 * 5120)]),
        (STEP, [("full", Full(), 12, 12 * 4096), ("swa", Window(511), 33, 33 * 4096)]),
        (DEEPSEEK, [("full", Full(), 61, 61 * 1152)]),
        # Two heads of 512 on the five layers that see everything, eight of 256 on the others.
        (GEMMA4, [("full", Full(), 5, 5 * 4096), ("swa", Window(1023), 25, 25 * 8192)]),
        # Of 30 layers the last ten use what others keep; every fifth of the first twenty sees everything.
        (GEMMA3N, [("full", Full(), 4, 4 * 2048), ("swa", Window(511), 16, 16 * 2048)]),
        (
            {**GPT_OSS, "model_type": "granite_swa"},
            [("full", Full(), 6, 6 * 2048), ("swa", Window(127), 18, 18 * 2048)],
        ),
        ({**EXAONE4, "model_type": "smollm3", "sliding_window": None}, [("full", Full(), 64, 64 * 4096)]),
        (
            {**GPT_OSS, "per_layer_config": {"01": {"head_dim": 128}, "03": {"num_key_value_heads": 1}}},
            [("full", Full(), 12, 12 * 2048 + 2048 - 1792), ("swa", Window(127), 12, 12 * 2048)],
        ),
    ],
)
def test_published_configs(config, expected):
    assert groups(config) == expected


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "the config says no num_hidden_layers"),
        ({"num_hidden_layers": 2}, "the config says no num_attention_heads"),
        ({**MISTRAL, "layer_types": ["full_attention"]}, "layer_types has 1 layers, and num_hidden_layers is 32"),
        ({**MISTRAL, "layer_types": ["linear_attention"] * 32}, "layer 0 is a layer of linear_attention"),
        (
            {**MISTRAL, "layer_types": ["sliding_attention"] * 32, "sliding_window": None},
            "layer 0 has sliding_attention, but the config does not say how far it sees",
        ),
        ({**MIMO, "hybrid_layer_pattern": [1, 0]}, "does not say it of all 48 layers"),
        ({**GEMMA3N["text_config"], "num_kv_shared_layers": 30}, "no layer of the model keeps K and V of its own"),
        ({**DEEPSEEK, "qk_rope_head_dim": None}, "the config says no qk_rope_head_dim"),
        ({**MISTRAL, "num_hidden_layers": 10**7}, "num_hidden_layers is 10000000, more than can be meant"),
        ({**MISTRAL, "hidden_size": 10**4000, "head_dim": None}, "the config's hidden_size is more than can be meant"),
        ({**MISTRAL, "hidden_size": 16, "head_dim": None}, "its hidden_size is less than its 32 heads"),
        ({**MISTRAL, "per_layer_config": {"x": {}, "0": 5}}, "per_layer_config says of layer 0 is no table of fields"),
    ],
)
def test_what_is_missing_is_named(config, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        read_shape(config)


def test_several_windows_have_names_of_their_own():
    shape = read_shape(
        {
            **GPT_OSS,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "per_layer_config": {"2": {"sliding_window": 32}},
        }
    )
    assert [(g.name, g.layers) for g in shape.groups()] == [("full", (3,)), ("swa31", (2,)), ("swa127", (0, 1))]
    assert shape.groups(1)[0].token_bytes * 2 == shape.groups()[0].token_bytes


KINDS = (
    "gpt_oss gemma2 gemma3 gemma3_text gemma3n_text gemma4 gemma4_text mistral mixtral qwen2 qwen3 qwen3_moe llama4 "
    "llama4_text cohere2 phi3 olmo3 exaone4 mimo_v2_flash granite_swa step3p7 smollm3 deepseek_v3"
)


@pytest.mark.parametrize("kind", KINDS.split())
def test_as_transformers_classes_have_it(kind):
    """Without what the class worked out itself the reading is the same, and layers are as the class lists them."""
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version has no {kind}")
    made = transformers.CONFIG_MAPPING[kind]()
    whole = made.to_dict()
    text = made.get_text_config()
    shape = read_shape(whole)
    shared = getattr(text, "num_kv_shared_layers", 0)
    listed = getattr(text, "layer_types", None) or ["full_attention"] * len(shape.layers)
    far = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    for layer, name in zip(shape.layers, listed[: len(listed) - shared], strict=True):
        bound = getattr(text, far[name]) if name in far else None
        unbound = bound is None or bound >= text.max_position_embeddings
        # A mistral and a mixtral of old have a window and no list.
        if unbound and kind != "mistral":
            assert layer.need == Full()
        elif name == "chunked_attention":
            assert layer.need == Chunked(bound)
        else:
            assert layer.need == Window((bound or text.sliding_window) - 1)
    worked_out = ("layer_types", "per_layer_config", "no_rope_layers")
    inner = {key: value for key, value in text.to_dict().items() if key not in worked_out}
    assert read_shape(inner).groups() == shape.groups()
