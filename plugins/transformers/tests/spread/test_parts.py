"""Every kind of model cut into parts answers what the whole one answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, GPT2Config

from stepwell import ConfigError
from stepwell_kernels.collective import Group, thread_groups
from stepwell_transformers.geometry import Geometry, geometry
from stepwell_transformers.model import plan_or_refuse
from stepwell_transformers.spread import Cut, Plan, install, plan
from stepwell_transformers.spread.checkpoint import Checkpoint, skeleton

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


@pytest.mark.parametrize(
    ("kind", "why"), [("llama", "2 KV heads"), ("mimo", "2 KV heads"), ("qwen3-moe", "2 KV heads")]
)
def test_what_does_not_come_out_even_stays_whole(kind: str, why: str, tiny: Callable[[str], Path]) -> None:
    """Four ranks: KV heads of some layers are too few, and 300 tokens of a vocabulary are 75 each."""
    model = whole_model(tiny(kind))
    with torch.inference_mode():
        want = model(input_ids=TOKENS, use_cache=False).logits
    found, shape = planned(model, 4)
    got = answers(cut(model, found, thread_groups(4)))
    assert all(torch.equal(got[0], other) for other in got[1:])
    assert (got[0] - want).abs().max() <= 1e-4 * want.abs().max()
    lines = list(found.lines())
    assert any(why in line for line in lines)
    assert lines[-1] == f"{len(found.whole)} layers keep the same in pages on each of 4 ranks"
    kept = {group.name: (group.heads, group.ranks) for group in shape.of_rank(4, found.whole).groups(4)}
    assert kept == {"full": (2, 1), "swa": (1, 4)} if kind == "mimo" else {"full": (2, 1)}
    assert sum(part.numel() for part in cut(model, found, thread_groups(4))[0].parameters()) < sum(
        part.numel() for part in model.parameters()
    )


def test_a_vocabulary_that_does_not_come_out_even_is_padded(tiny: Callable[[str], Path]) -> None:
    """Three ranks cut 300 tokens evenly, and seven do not; nothing else of this model comes out even then."""
    model = whole_model(tiny("gemma3"))
    with torch.inference_mode():
        want = model(input_ids=TOKENS, use_cache=False).logits
    found, _ = planned(model, 7)
    assert not found.cuts_layers
    parts = cut(model, found, thread_groups(7))
    got = answers(parts)
    assert parts[0].lm_head.weight is parts[0].model.embed_tokens.weight
    assert parts[0].lm_head.weight.shape == (43, 64)
    assert got[0].shape == want.shape
    assert all(torch.equal(one, got[0]) for one in got)
    assert (got[0] - want).abs().max() <= 1e-4 * want.abs().max()


def test_a_model_without_a_plan_is_refused_in_a_sentence() -> None:
    config = GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=60, n_positions=64)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match=r"no layer of small can be split over 2 ranks \(.+\): set ranks.tp = 1"):
        plan_or_refuse(geometry(config, "small"), 2, "small", model)


@pytest.mark.parametrize(
    ("cut", "want"),
    [
        (Cut(0), [[4, 5], [6, 7]]),
        (Cut(1), [[1], [3], [5], [7]]),
        (Cut(0, pieces=2), [[2, 3], [6, 7]]),
        (Cut(0, once=True), [[0, 0], [0, 0], [0, 0], [0, 0]]),
    ],
)
def test_the_second_of_two_ranks_has_its_part(cut: Cut, want: list[list[int]]) -> None:
    whole = torch.arange(8).view(4, 2)
    assert cut.part(whole, whole.shape, 1, 2).tolist() == want
    assert cut.length(whole.shape, 2) == len(want) or cut.dim == 1


def test_a_part_beyond_the_end_is_padding() -> None:
    whole = torch.arange(1, 6)[:, None]
    assert [Cut(0, padded=True).part(whole, whole.shape, rank, 4).flatten().tolist() for rank in range(4)] == [
        [1, 2],
        [3, 4],
        [5, 0],
        [0, 0],
    ]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


@pytest.mark.parametrize("kind", ["qwen2", "gemma3", "mixtral", "qwen3-moe", "gpt-oss", "llama4"])
def test_a_part_read_from_a_checkpoint_is_a_part_of_the_whole(kind: str, tiny: Callable[[str], Path]) -> None:
    model = whole_model(tiny(kind))
    found, _ = planned(model, 2)
    for group, want in zip(groups := thread_groups(2), cut(model, found, groups), strict=True):
        empty = skeleton(model.config, torch.float32, "eager")
        checkpoint = Checkpoint(tiny(kind))
        assert not checkpoint.lacking(empty)
        checkpoint.read_part(empty, found, group, torch.device("cpu"))
        got = weights(empty)
        assert got.keys() == weights(want).keys()
        assert all(torch.equal(got[name], tensor) for name, tensor in weights(want).items())


def test_a_weight_that_is_never_rounded_is_read_as_it_is(tmp_path: Path) -> None:
    """Routers of DeepSeek, in bfloat16; its latent attention is cut by heads, and every rank has its latents."""
    sizes = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    config = DeepseekV3Config(
        **sizes,
        **experts,
        **{"n_group": 1, "topk_group": 1, "num_hidden_layers": 2, "vocab_size": 300, "hidden_size": 64},
        **{"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512},
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager").eval()
    found, _ = planned(model, 2)
    (group, _) = groups = thread_groups(2)
    want = weights(cut(model, found, groups)[0])
    empty = skeleton(model.config, torch.bfloat16, "eager")
    checkpoint = Checkpoint(tmp_path)
    assert not checkpoint.lacking(empty)
    checkpoint.read_part(empty, found, group, torch.device("cpu"))
    got = weights(empty)
    assert {name: tensor.dtype for name, tensor in got.items()} == {name: tensor.dtype for name, tensor in want.items()}
    assert all(torch.equal(got[name], tensor) for name, tensor in want.items())
    assert found.whole == {0, 1}
    assert want["model.layers.1.self_attn.kv_b_proj.weight"].shape[0] == 2 * (16 + 12)


def test_models_made_by_threads_leave_nothing_without_weights_behind() -> None:
    config = DeepseekV3Config(num_hidden_layers=1, hidden_size=32, vocab_size=64, intermediate_size=32)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: skeleton(config, torch.float32, "eager"), range(8)))
    assert all(weight.device.type == "meta" for model in made for weight in model.parameters())
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
