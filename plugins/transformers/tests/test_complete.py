"""Checkpoints that lack weights of their model are refused; those that only have them otherwise are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from stepwell import ConfigError
from stepwell_kernels.collective import Solo
from stepwell_transformers.apart import silent
from stepwell_transformers.dequantise import from_gguf
from stepwell_transformers.geometry import geometry
from stepwell_transformers.load import Source
from stepwell_transformers.model import PagedModel, plan_or_refuse

CPU = torch.device("cpu")
WEIGHT = "model.layers.1.self_attn.o_proj.weight"


def copied(source: Path, folder: Path, drop: tuple[str, ...] = (), **config: object) -> Path:
    """A checkpoint without some weights, or with other words in its config."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    kept = {name: tensor for name, tensor in load_file(source / "model.safetensors").items() if name not in drop}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def source(folder: Path) -> Source:
    config = AutoConfig.from_pretrained(folder)
    return Source(folder, config, folder.name, torch.float32, "eager")


class First(Solo):
    """The first of several ranks, whose others see what it sees."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def load(folder: Path, ranks: int) -> torch.nn.Module:
    """The model, or the first rank's part of it."""
    wanted = source(folder)
    if ranks == 1:
        return wanted.load(CPU)
    planned = partial(plan_or_refuse, geometry(wanted.config, "small"), ranks, "small")
    return wanted.load_part(CPU, First(ranks), planned, silent)[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_weight_that_is_missing_is_named(ranks: int, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(tiny("llama"), tmp_path / "small", drop=(WEIGHT,))
    with pytest.raises(ConfigError, match=rf"not those of its config \(missing: 1, {WEIGHT}\)") as failure:
        load(folder, ranks)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_config_of_more_weights_is_refused(ranks: int, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(tiny("llama"), tmp_path / "small", num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"missing: 9, model\.layers\.2\.[^)]+, \.\.\.\)"):
        load(folder, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_config_of_other_shapes_is_refused(ranks: int, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(tiny("llama"), tmp_path / "small", intermediate_size=128)
    with pytest.raises(ConfigError, match=r"of another shape: 6, model\.layers\.0\.mlp\.down_proj\.weight"):
        load(folder, ranks)


def test_experts_of_other_shapes_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """That library makes one weight of those of all experts while it reads them."""
    folder = copied(tiny("qwen3-moe"), tmp_path / "small", moe_intermediate_size=16)
    with pytest.raises(ConfigError, match=r"mlp\.experts\.down_proj"):
        load(folder, 1)


def test_a_config_that_cannot_be_read_says_of_which_field_and_why(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(tiny("llama"), tmp_path / "small", num_hidden_layers="two")
    with pytest.raises(ConfigError, match=r"num_hidden_layers.*expected int.*two") as failure:
        PagedModel(folder, "small", None, CPU)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_head_tied_to_the_embedding_is_not_missing(ranks: int, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """And one that is tied to nothing is."""
    assert "lm_head.weight" not in load_file(tiny("gemma3") / "model.safetensors")
    load(tiny("gemma3"), ranks)
    folder = copied(tiny("gemma3"), tmp_path / "small", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"missing: 1, lm_head\.weight"):
        load(folder, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_of_four_bits_still_load(ranks: int, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Experts of gpt-oss as blocks and scales, each of which stands for one."""
    whole = tiny("gpt-oss")
    state = load_file(whole / "model.safetensors")
    for name in [name for name in state if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inner, outer = state.pop(name).shape
        state[name + "_blocks"] = torch.full((experts, outer, inner // 32, 16), 0x22, dtype=torch.uint8)
        state[name + "_scales"] = torch.full((experts, outer, inner // 32), 127, dtype=torch.uint8)
    folder = copied(whole, tmp_path / "small", quantization_config={"quant_method": "mxfp4"})
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    experts = load(folder, ranks).model.layers[0].mlp.experts
    assert torch.all(experts.down_proj == 1)


def gguf(path: Path, *, drop: str = "") -> Path:
    """A small Llama of one layer, without one of its tensors."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c", "d", "e", "f", "g", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * 8)
    shapes = {
        "token_embd": (8, 32),
        "output_norm": (32,),
        "output": (8, 32),
        **{f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")},
        **{f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}": (64, 32) for name in ("gate", "up")},
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        if name != drop:
            writer.add_tensor(f"{name}.weight", torch.ones(shape).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    """And is not converted, so that it is refused the next time as well."""
    assert "model.layers.0.mlp.down_proj.weight" in load_file(
        from_gguf(gguf(tmp_path / "all.gguf"), tmp_path, silent) / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"missing: 1, model\.layers\.0\.mlp\.down_proj\.weight"):
        from_gguf(gguf(tmp_path / "less.gguf", drop="blk.0.ffn_down"), tmp_path, silent)
    assert not list(tmp_path.glob("models/less*/config.json"))
