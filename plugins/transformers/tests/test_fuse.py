"""Fused models answer as their own code does, keep their weights once, and leave alone what they do not know."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoConfig,
    Phi3Config,
)
from transformers.models.llama import modeling_llama

from stepwell import Window
from stepwell_kernels.fused import rms_norm
from stepwell_transformers import paging
from stepwell_transformers.apart import silent
from stepwell_transformers.fuse import fuse
from stepwell_transformers.fuse.compiled import by_compiler
from stepwell_transformers.fuse.norms import CARRIED
from stepwell_transformers.fuse.probe import Probe, positions

KINDS = (
    *("llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3-moe", "gpt-oss", "gemma2", "gemma3", "mistral-sliding"),
    *("llama4", "mimo", "qwen3-sliding", "qwen2-types", "cohere2", "olmo3"),
)
SMALL = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    max_position_embeddings=512,
    initializer_range=0.15,
    pad_token_id=0,
)
KEPT = {"llama4": {"Attention"}, "cohere2": {"LayerNorm"}}
"""What keeps its own forward: complex rope, and norms that are no RMSNorms."""


def model(config, dtype=torch.float32):
    torch.manual_seed(3)
    made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=paging.NAME).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.dim() == 1:
                weight.uniform_(0.5, 1.5) if "norm" in name else weight.normal_(std=0.5)
    return made


def llama(**more):
    return model(LlamaConfig(**SMALL | more))


class Windows(Probe):
    """Layers with a window see what their config says."""

    window = 0

    def need(self, layer):
        return Window(self.window - 1)


def logits(made, tokens=5):
    """Through a fused model's forwards, with noise for attention."""
    probe = Windows(positions(512, made.device).repeat(20)[:tokens])
    probe.window = getattr(made.config, "sliding_window", None) or 0
    ids = torch.arange(3, 3 + tokens, device=made.device)[None]
    with torch.inference_mode():
        return made(input_ids=ids, position_ids=probe.positions[None], use_cache=False, paging=probe).logits


def storages(made):
    """Bytes of all that parameters are kept in."""
    kept = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in made.parameters()}
    return sum(kept.values())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_fused_model_answers_what_generate_says(kind, tiny, drive, truth, make_prompts):
    driver = drive(tiny(kind), fuse="kernels")
    lines = driver.runner._model.fused.lines
    left = [line for line in lines if " left: " in line]
    assert all(any(name in line for name in KEPT.get(kind, ())) for line in left), left
    assert len(left) == len(KEPT.get(kind, ()))
    assert any("Layer fused" in line for line in lines), lines
    prompts = make_prompts(94, 3, 21)
    for prompt, answer in zip(prompts, driver.serve(prompts, new=8, stagger=2), strict=True):
        truth(tiny(kind), prompt, 8).check(answer)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt-oss"])
def test_weights_are_kept_once_under_their_own_names(kind, tiny):
    made = AutoModelForCausalLM.from_pretrained(tiny(kind), dtype=torch.float32, attn_implementation=paging.NAME)
    before = {name: weight.clone() for name, weight in made.state_dict().items()}
    nbytes = storages(made)
    fuse(made, "kernels")
    after = made.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert storages(made) == nbytes
    attention = made.model.layers[0].self_attn
    parts = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1


def test_layers_leave_the_norm_of_their_sum_for_whoever_reads_it(monkeypatch):
    made = llama()
    want = logits_of_own(made, 30)
    fuse(made, "kernels")
    seen = []
    made.model.norm.register_forward_pre_hook(lambda _, args: seen.append(getattr(args[0], CARRIED, None)))
    alone = []

    def counted(*args):
        alone.append(args)
        return rms_norm(*args)

    monkeypatch.setattr("stepwell_transformers.fuse.norms.rms_norm", counted)
    assert torch.allclose(logits(made, 30), want, atol=1e-4)
    assert seen[0][0].weight is made.model.norm.weight
    assert len(alone) == 1  # the first layer's, of the embeddings


def logits_of_own(made, tokens):
    made.set_attn_implementation("stepwell_probe")
    try:
        return logits(made, tokens)
    finally:
        made.set_attn_implementation(paging.NAME)


def test_without_pages_a_fused_model_runs_its_own_code():
    made = llama()
    ids = torch.arange(3, 12)[None]
    made.set_attn_implementation("eager")
    with torch.inference_mode():
        want = made(input_ids=ids, use_cache=False).logits
        fuse(made, "kernels")
        assert torch.allclose(made(input_ids=ids, use_cache=False).logits, want, atol=1e-5)
    assert made.config._attn_implementation == "eager"


class ClampedMLP(modeling_llama.LlamaMLP):
    """Clamps where only large numbers show it."""

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=7.0) * self.up_proj(x))


class ScaledAttention(modeling_llama.LlamaAttention):
    def forward(self, hidden_states, **more):
        out, weights = super().forward(hidden_states, **more)
        return out * 1.02, weights


class CentredNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class LouderLayer(modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states, **more):
        return super().forward(hidden_states, **more) + 0.05 * hidden_states


TWISTS = {
    "LlamaMLP": ClampedMLP,
    "LlamaAttention": ScaledAttention,
    "LlamaRMSNorm": CentredNorm,
    "LlamaDecoderLayer": LouderLayer,
}


@pytest.mark.parametrize("name", sorted(TWISTS))
def test_a_module_with_a_twist_of_its_own_is_left_alone_and_named(name, monkeypatch):
    monkeypatch.setattr(modeling_llama, name, TWISTS[name])
    torch.manual_seed(5)
    made = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
    made.set_attn_implementation("stepwell_probe")
    want = logits(made)
    made.set_attn_implementation(paging.NAME)
    lines = fuse(made, "kernels").lines
    assert any(f" {TWISTS[name].__name__} left: " in line and "off by" in line for line in lines), lines
    assert not any(f" {TWISTS[name].__name__} fused" in line for line in lines)
    assert torch.allclose(logits(made), want, atol=1e-4)


def test_a_module_whose_forward_was_replaced_is_left_alone():
    made = llama()
    made.model.layers[0].mlp.forward = lambda x: x
    lines = fuse(made, "kernels").lines
    assert "1 LlamaMLP left: its forward was replaced, or has hooks" in lines
    assert made.model.layers[0].mlp.forward(5) == 5


def test_merged_projections_partial_rope_and_other_arrangements():
    phi = fuse(
        model(
            Phi3Config(
                **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
            )
        ),
        "kernels",
    )
    assert "2 Phi3DecoderLayer fused" in phi.lines and "2 Phi3Attention fused" in phi.lines, phi.lines
    biased = fuse(llama(attention_bias=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh"), "kernels")
    assert not [line for line in biased.lines if "left" in line]
    multiplied = fuse(model(GraniteConfig(**SMALL, residual_multiplier=0.3)), "kernels")
    assert any("GraniteDecoderLayer left" in line for line in multiplied.lines)
    assert "2 GraniteAttention fused" in multiplied.lines
    clipped = fuse(model(OlmoConfig(**SMALL, clip_qkv=8.0)), "kernels")
    assert any("OlmoAttention left" in line for line in clipped.lines)


def test_a_model_that_cannot_run_through_pages_is_left_whole():
    made = llama()
    made.model.embed_tokens.forward = lambda ids: 1 / 0
    (line,) = fuse(made, "kernels").lines
    assert line == "nothing: the model does not run through pages (ZeroDivisionError: division by zero)"


@pytest.mark.parametrize("kind", ["gemma3", "gpt-oss"])
def test_compiled_layers_answer_as_their_own_code(kind, tiny, drive, truth, make_prompts):
    """With a backend that compiles nothing: what a layer becomes is seen all the same."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    driver = drive(tiny(kind))
    paged_model = driver.runner._model
    fused = by_compiler(paged_model.model, silent, backend)
    layers = len(paged_model.model.model.layers)
    assert len(fused.forwards) == layers
    asked = [graph for graph in graphs if "attend_pages" in graph.code]
    if kind == "gemma3":  # two kinds of layers, of one token and of more
        assert len(asked) == len(graphs) == 4
    made = len(graphs)
    prompts = make_prompts(40, 3)
    for prompt, answer in zip(prompts, driver.serve(prompts, new=8), strict=True):
        truth(tiny(kind), prompt, 8).check(answer)
    assert len(graphs) == made


def test_auto_is_off_without_cuda():
    made = llama()
    assert fuse(made).lines == fuse(made, "off").lines == ()


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt-oss", "mimo", "olmo3"])
def test_proofs_hold_in_bfloat16(kind, tiny):
    made = AutoModelForCausalLM.from_pretrained(tiny(kind), dtype=torch.bfloat16, attn_implementation=paging.NAME)
    lines = fuse(made.eval(), "kernels").lines
    assert lines and not [line for line in lines if "left" in line]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("config", [LlamaConfig, Gemma3TextConfig, GptOssConfig])
def test_fused_kernels_answer_as_their_own_code_on_cuda(config):
    made = model(config(**SMALL, head_dim=32), torch.bfloat16).to("cuda")
    want = logits_of_own(made, 30).float()
    fused = fuse(made)
    assert fused.lines and not [line for line in fused.lines if "left" in line], fused.lines
    got = logits(made, 30).float()
    assert (got - want).norm() < 0.05 * want.norm()
