"""Finding, converting and refusing models; the tokenizer; what a runner says of itself."""

import json
import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import (
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    T5Config,
)

from stepwell import ConfigError
from stepwell_transformers.codec import TransformersCodec
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.models import fingerprint, locate
from stepwell_transformers.refuse import refuse, unsupported
from stepwell_transformers.runner import TransformersRunner, pick_device


@pytest.fixture
def context(tmp_path):
    return SimpleNamespace(rank=0, world=1, device="cpu", clock=None, log=logging.getLogger("t"), state_dir=tmp_path)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (LlamaConfig(), None),
        (MistralConfig(sliding_window=None), None),
        (Qwen2Config(use_sliding_window=False), None),
        (MistralConfig(sliding_window=128), "sliding"),
        (Gemma3TextConfig(), "sliding"),
        (GptOssConfig(), "experts"),
        (MixtralConfig(sliding_window=None), "experts"),
        (T5Config(), "encoder"),
        (LlamaConfig(quantization_config={"quant_method": "fp8"}), "quantised"),
        (LlamaConfig(auto_map={"AutoModelForCausalLM": "x.Y"}), "code of its own"),
        (LlamaConfig(architectures=["LlamaForSequenceClassification"]), "head"),
        (LlamaConfig(kv_lora_rank=64), "latent"),
        (LlamaConfig(vision_config={"hidden_size": 8}), "tower"),
        (LlamaConfig(layer_types=["linear_attention", "full_attention"], num_hidden_layers=2), "linear_attention"),
    ],
)
def test_a_part_that_is_not_run_is_named(config, part):
    found = unsupported(config)
    assert (found is None) if part is None else (part in found)
    if part:
        with pytest.raises(ConfigError, match=r"runner\.model: m has .*not supported"):
            refuse(config, "m")


def test_a_path_that_is_no_model_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        locate(str(tmp_path), None, tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        locate(str(tmp_path / "x.gguf"), None, tmp_path)
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="no GGUF file"):
        locate(str(tmp_path / "bad.gguf"), None, tmp_path)
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + b"\0" * 20)
    with pytest.raises(ConfigError, match="cannot be read"):
        locate(str(tmp_path / "cut.gguf"), None, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").glob("cut*"))


def test_the_fingerprint_follows_weights_and_config(new_model, tmp_path):
    one, two, again = (new_model(tmp_path / str(i), "llama", seed) for i, seed in enumerate((0, 1, 0)))
    assert fingerprint(one) == fingerprint(again) != fingerprint(two)
    config = json.loads((again / "config.json").read_text())
    (again / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert fingerprint(one) != fingerprint(again)


def test_damaged_weights_are_one_sentence(new_model, tmp_path, context):
    folder = new_model(tmp_path / "m", "llama")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ConfigError, match="weights"):
        TransformersRunner(TransformersConfig(str(folder), device="cpu"), context)


def test_a_device_that_is_not_there_is_one_sentence():
    for name in ("tpu", "cuda:99", "mps"):
        with pytest.raises(ConfigError, match=r"runner\.device"):
            pick_device(name)


def test_streamed_text_is_the_decoded_text(models_dir, context):
    codec = TransformersCodec(TransformersConfig(str(models_dir["llama"])), context)
    rng = random.Random(4)
    for text in ("plain words", "naïve café", "漢字 and 🦙🦙", "tabs\tand\nlines", "🏳️‍🌈 flags"):
        tokens = np.frombuffer(codec.encode(text), dtype=np.int32).tolist()
        stream, out, at = codec.stream(), "", 0
        while at < len(tokens):
            size = rng.randrange(1, 4)
            out += stream.add(tokens[at : at + size])
            assert "�" not in out
            at += size
        assert out + stream.end() == text
        assert b"".join(codec.piece(token) for token in tokens) == text.encode()
    assert codec.stream().add([2]) == ""


def test_a_model_without_a_chat_template_says_so(models_dir, context):
    codec = TransformersCodec(TransformersConfig(str(models_dir["llama"])), context)
    with pytest.raises(ValueError, match="no chat template"):
        codec.chat([{"role": "user", "content": "hi"}])


@pytest.mark.slow
def test_smollm2_comes_out_of_its_wheel_and_answers(tmp_path, context):
    from stepwell_transformers.models import _smollm2

    folder = _smollm2(_cache(), lambda _: None)
    codec = TransformersCodec(TransformersConfig(str(folder)), context)
    tokens = codec.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert b"<|im_start|>" in b"".join(codec.piece(token) for token in np.frombuffer(tokens, dtype=np.int32).tolist())
    import stepwell

    with stepwell.Engine(runner={"use": "transformers", "model": str(folder)}, cache={"device_pages": 64}) as engine:
        answer = engine.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=12)
    assert "Paris" in answer.text


def _cache():
    from stepwell.config import Config, environment

    return Config.load(None, environment()).cache_dir / "transformers"
