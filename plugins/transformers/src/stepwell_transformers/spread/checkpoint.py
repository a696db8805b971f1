"""Checkpoints of which a rank reads its part: safetensors that name weights as the model does."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM

from stepwell_kernels.collective import Group
from stepwell_transformers.spread.cut import Readable
from stepwell_transformers.spread.install import install
from stepwell_transformers.spread.plan import Plan

EXPERTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""What checkpoints call gate, up and down of an expert."""
OLDER = (".mlp.", ".block_sparse_moe.")
"""What a module is called now, and in checkpoints of Mixtral."""


MAKING = threading.Lock()
"""Held where a library makes modules: it changes `nn.Module` and torch's own functions for all threads meanwhile."""


def skeleton(config: Any, dtype: torch.dtype | None, attention: str) -> Any:
    """A model whose weights are on no device; what it computes from its config is there."""
    with MAKING, init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype or config.dtype, attn_implementation=attention)
    model.tie_weights()
    return model.requires_grad_(False)


class Checkpoint:
    """The safetensors of a folder."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._open[path] = safe_open(path, "pt")
            self._files |= dict.fromkeys(self._open[path].keys(), path)

    def lacking(self, model: Any) -> list[str]:
        """What a model wants that is not there in its shape, by its name or expert by expert."""
        return [names[0] for names, tensor in _wanted(model) if self._find(names, tuple(tensor.shape)) is None]

    def read_part(self, model: Any, plan: Plan, group: Group, device: torch.device) -> None:
        """Cut a model that has no weights yet, and read what is left of it."""
        shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(model)}
        install(model, plan, group)
        for names, tensor in _wanted(model):
            shape = shapes[names[0]]
            found = self._find(names, shape)
            assert found is not None
            cut = next((plan.cuts[name] for name in names if name in plan.cuts), None)
            all_of_it = (slice(None),) * len(shape)
            part = found[all_of_it] if cut is None else cut.part(found, shape, group.rank, group.size)
            precise = any(kept in name for kept in _precise(model) for name in names)
            _give(model, names, part.to(device, torch.float32 if precise else tensor.dtype))
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)

    def _find(self, names: list[str], shape: tuple[int, ...]) -> Readable | None:
        """What a tensor that goes by these names is read from."""
        for name in [*names, *(name.replace(*OLDER) for name in names)]:
            if (found := self._tensor(name, shape) or self._experts(name, shape)) is not None:
                return found
        return None

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Readable | None:
        if name not in self._files:
            return None
        found = self._open[self._files[name]].get_slice(name)
        return found if tuple(found.get_shape()) == shape else None

    def _experts(self, name: str, shape: tuple[int, ...]) -> Stacked | None:
        """A weight of all experts, of which a checkpoint has one each."""
        owner, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or len(shape) != 3:
            return None
        for gate, up, down in EXPERTS:
            own = [gate, up] if last == "gate_up_proj" else [down]
            size = (shape[1] // len(own), shape[2])
            parts = [[self._tensor(f"{owner}.{at}.{one}.weight", size) for one in own] for at in range(shape[0])]
            found = [[part for part in one if part is not None] for one in parts]
            if all(len(one) == len(own) for one in found):
                return Stacked(found, size[0])
        return None


@dataclass(frozen=True, slots=True)
class Stacked:
    """Weights of experts, each of which has some that lie behind each other, as one: [experts, rows, columns]."""

    experts: Sequence[Sequence[Readable]]
    rows: int
    """Of one of them."""

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        which, rows, columns = index
        return torch.stack([self._of(parts, rows, columns) for parts in self.experts[which]])

    def _of(self, parts: Sequence[Readable], rows: slice, columns: slice) -> torch.Tensor:
        start, end, _ = rows.indices(len(parts) * self.rows)
        spans = [(max(0, start - at * self.rows), min(self.rows, end - at * self.rows)) for at in range(len(parts))]
        return torch.cat(
            [part[slice(*span), columns] for part, span in zip(parts, spans, strict=True) if span[0] < span[1]]
        )


def _precise(model: Any) -> list[str]:
    """Parts of names of weights that are never rounded to 16 bits."""
    return list(getattr(model, "_keep_in_fp32_modules_strict", None) or ())


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
