"""Checkpoints of which a rank reads its part: safetensors that name weights as the model does."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM

from stepwell_kernels.collective import Group
from stepwell_transformers.spread.install import install
from stepwell_transformers.spread.plan import Plan


def skeleton(config: Any, dtype: torch.dtype | None, attention: str) -> Any:
    """A model whose weights are on no device; what it computes from its config is there."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype or config.dtype, attn_implementation=attention)
    return model.requires_grad_(False)


class Checkpoint:
    """The safetensors of a folder."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def fits(self, model: Any, dtype: torch.dtype | None) -> bool:
        """Whether all that a model wants is there under its name and in its shape, to be loaded as one dtype."""
        if dtype is None or (dtype != torch.float32 and getattr(model, "_keep_in_fp32_modules_strict", None)):
            return False
        return all(self._named(names, tensor.shape) for names, tensor in _wanted(model))

    def read_part(self, model: Any, plan: Plan, group: Group, device: torch.device) -> None:
        """Cut a model that has no weights yet, and read what is left of it."""
        whole = {id(tensor): tuple(tensor.shape) for _, tensor in _wanted(model)}
        shapes = {name: whole[id(tensor)] for name, tensor in _tensors(model)}
        install(model, plan, group)
        for names, tensor in _wanted(model):
            name = self._named(names, shapes[names[0]])
            assert name is not None
            with safe_open(self._files[name], "pt") as file:
                part = file.get_slice(name)
                cut = next((plan.cuts[one] for one in names if one in plan.cuts), None)
                if cut is None:
                    found = file.get_tensor(name)
                else:
                    found = cut.part(part, shapes[names[0]], group.rank, group.size)
            _give(model, names, found.to(device, tensor.dtype))
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)

    def _named(self, names: list[str], shape: Any) -> str | None:
        """The name, of several, under which a tensor of this shape is there."""
        for name in names:
            if name in self._files:
                with safe_open(self._files[name], "pt") as file:
                    if tuple(file.get_slice(name).get_shape()) == tuple(shape):
                        return name
        return None


def _tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    """All that a checkpoint has of a model, by each name that it has in it."""
    kept = model.state_dict(keep_vars=True)
    return [(name, tensor) for name, tensor in kept.items() if isinstance(tensor, torch.Tensor)]


def _wanted(model: Any) -> list[tuple[list[str], torch.Tensor]]:
    """The same, each once with all its names."""
    names: dict[int, list[str]] = defaultdict(list)
    found: dict[int, torch.Tensor] = {}
    for name, tensor in _tensors(model):
        names[id(tensor)].append(name)
        found[id(tensor)] = tensor
    return [(names[key], tensor) for key, tensor in found.items()]


def _give(model: Any, names: list[str], tensor: torch.Tensor) -> None:
    """Put a tensor where a model has it."""
    own = nn.Parameter(tensor, requires_grad=False)
    for name in names:
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        if last in module._parameters:
            module._parameters[last] = own
        else:
            module._buffers[last] = tensor
