"""A rank reads its slots' experts and nothing else of them, and what cannot be spread is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, Llama4TextConfig

from stepwell import ConfigError, Offer, Part
from stepwell_kernels.collective import thread_groups
from stepwell_transformers.config import TransformersConfig
from stepwell_transformers.experts.found import routed, top_k
from stepwell_transformers.experts.slots import Slots, first_row
from stepwell_transformers.geometry import geometry
from stepwell_transformers.model import plan_or_refuse
from stepwell_transformers.spread import install
from stepwell_transformers.spread.checkpoint import Checkpoint, skeleton

FAMILIES = ("mixtral", "qwen2-moe", "gpt-oss", "deepseek-v3")


class Counted:
    """A tensor in a file, of which is noted what is read."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole, self.read = whole, 0

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        found = self.whole[index]
        self.read += found.numel()
        return found


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_read_from_a_checkpoint_is_a_part_of_the_whole(
    family: str, spare: int, folder_of: Callable[[str], Path], whole_of: Any, asked_for: Any, table: Any
) -> None:
    """Expert by expert, as published, or stacked; each rank's slots, replicas among them."""
    model, folder = whole_of(family), folder_of(family)
    shape = geometry(model.config, "it")
    for rank, group in enumerate(thread_groups(2)):
        asked = asked_for(table(2), rank, spare=spare)
        empty = skeleton(model.config, torch.float32, "eager")
        found = plan_or_refuse(shape, 2, "it", empty, asked)
        checkpoint = Checkpoint(folder)
        assert not checkpoint.lacking(empty)
        checkpoint.read_part(empty, found, group, torch.device("cpu"))
        want = whole_of(family)
        install(want, found, group)
        assert weights(empty).keys() == weights(want).keys()
        assert all(torch.equal(weights(empty)[name], weight) for name, weight in weights(want).items())
        layer = routed(empty, "it")[0]
        own = first_row(8, spare).reshape(2, -1)[rank].tolist()
        assert layer.count == len(own)
        for name in layer.weights:
            assert torch.equal(layer.weight(name), routed(model, "it")[0].weight(name)[own])


def test_experts_that_a_checkpoint_has_stacked_are_read_in_runs(
    tmp_path: Path, folder_of: Callable[[str], Path], whole_of: Any, asked_for: Any, table: Any
) -> None:
    """As gpt-oss is saved; nothing of other ranks' experts is read."""
    stacked = Counted(torch.arange(8 * 3 * 2).view(8, 3, 2).float())
    mine = Slots((4, 5, 6, 7, 1))
    assert torch.equal(mine.part(stacked, (8, 3, 2), 0, 1), stacked.whole[[4, 5, 6, 7, 1]])
    assert stacked.read == 5 * 3 * 2
    kept = load_file(next(folder_of("gpt-oss").glob("*.safetensors")))
    assert any(tensor.dim() == 3 for tensor in kept.values()), "this one is stacked"
    save_file(kept, tmp_path / "model.safetensors")
    model = whole_of("gpt-oss")
    empty = skeleton(model.config, torch.float32, "eager")
    assert not Checkpoint(tmp_path).lacking(empty)


def test_slots_are_shared_out_in_order() -> None:
    assert first_row(4, 6).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert [Slots.of(first_row(4, 2), rank, 3).experts for rank in range(3)] == [(0, 1), (2, 3), (0, 1)]


def test_a_model_without_experts_is_refused(whole_of: Any, asked_for: Any, table: Any) -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=60, n_positions=64))
    with pytest.raises(ConfigError, match=r"runner.dispatch: it has no routed experts: use 'off'"):
        asked_for(table(2), 0).cuts(model)


def test_experts_of_another_kind_are_refused_by_name(asked_for: Any, table: Any) -> None:
    config = Llama4TextConfig(
        **{"vocab_size": 60, "hidden_size": 32, "intermediate_size": 16, "intermediate_size_mlp": 16, "head_dim": 8},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2},
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(
        ConfigError, match=r"it has experts that are no part of .*ExpertsInterface \(Llama4TextExperts\)"
    ):
        asked_for(table(2), 0).cuts(model)


def test_experts_that_are_not_shared_evenly_are_refused(whole_of: Any, asked_for: Any, table: Any) -> None:
    with pytest.raises(ConfigError, match=r"runner.experts.spare: 8 experts of it and 0 .* by 3 ranks: set it to 1"):
        asked_for(table(3), 0).cuts(whole_of("mixtral"))


def test_tokens_that_go_to_all_experts_are_refused(whole_of: Any) -> None:
    model = whole_of("mixtral")
    layer = routed(model, "it")[0]
    assert top_k(layer, 8, model.config, "it") == 2
    with pytest.raises(ConfigError, match=r"tokens of it go to 2 of 2 experts"):
        top_k(layer, 2, model.config, "it")


def test_settings_that_do_not_go_together_are_refused(table: Any, table_part: Any) -> None:
    part = table_part(table(1))
    with pytest.raises(ValueError, match=r"fuse: compile does not go with a dispatch"):
        TransformersConfig(dispatch=part, fuse="compile")
    with pytest.raises(ValueError, match=r"decode_dispatch: there is no dispatch beside"):
        TransformersConfig(decode_dispatch=part)
    assert TransformersConfig(dispatch=part, decode_dispatch=part, fuse="kernels").experts.spare == 0


def test_a_dispatcher_that_fails_is_named(whole_of: Any, spread_over: Any) -> None:
    def broken(config: object, place: object) -> None:
        raise OSError("no such wire")

    with pytest.raises(ConfigError, match=r"runner.decode_dispatch: 'broken' .* \(OSError: no such wire\); use 'off'"):
        spread_over(whole_of("mixtral"), 1, decode=Part(Offer("broken", broken), None))
