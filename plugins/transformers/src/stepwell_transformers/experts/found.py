"""The routed experts of a model: modules that go through the ExpertsInterface of the transformers library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepwell import ConfigError

FLAGS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")
"""What that interface says of a module."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts of one layer."""

    name: str
    module: Any
    block: nn.Module
    """What routes to them."""

    @property
    def up(self) -> str:
        """Its first weight's name."""
        return "gate_up_proj" if self.module.has_gate else "up_proj"

    @property
    def count(self) -> int:
        """How many experts its weights are of: all, or those in a rank's slots."""
        return self.weight("down_proj").shape[0]

    @property
    def hidden(self) -> int:
        """Numbers of a token, as experts see it."""
        return self.weight("down_proj").shape[2 if self.module.is_transposed else 1]

    @property
    def weights(self) -> list[str]:
        """Names of all that each expert has one of."""
        return [name for name, weight in self.module._parameters.items() if weight is not None]

    def weight(self, name: str) -> torch.Tensor:
        """All experts' own."""
        found: torch.Tensor = self.module.get_parameter(name)
        return found.detach()

    def optional(self, name: str) -> torch.Tensor | None:
        """The same, where the module has it."""
        return self.weight(name) if self.module.has_bias else None


def routed(model: nn.Module, name: str) -> list[Routed]:
    """Of each layer that has some, in order. ConfigError for a model whose experts cannot be spread."""
    found = [
        Routed(path, module, model.get_submodule(path.rpartition(".")[0]))
        for path, module in model.named_modules()
        if all(flag in module.__dict__ for flag in FLAGS)
    ]
    if not found:
        raise ConfigError(f"runner.dispatch: {name} has {_instead(model)}: use 'off'")
    if len({(layer.count, layer.hidden) for layer in found}) > 1:
        raise ConfigError(f"runner.dispatch: {name} has layers with experts of different shapes: use 'off'")
    return found


def top_k(layer: Routed, experts: int, config: Any, name: str) -> int:
    """How many of so many experts a token goes to."""
    said = [getattr(part, "top_k", None) for part in layer.block.modules()]
    said.append(getattr(config, "num_experts_per_tok", None))
    known = next((count for count in said if isinstance(count, int)), 0)
    if not 1 <= known < experts:
        raise ConfigError(
            f"runner.dispatch: tokens of {name} go to {known or 'an unknown number'} of {experts} experts, "
            "which no dispatcher takes: use 'off'"
        )
    return known


def _instead(model: nn.Module) -> str:
    """What a model has that has no experts of that interface."""
    for module in model.modules():
        weights = [weight for weight in module._parameters.values() if weight is not None]
        if "Experts" in type(module).__name__ and any(weight.dim() == 3 for weight in weights):
            return f"experts that are no part of transformers' ExpertsInterface ({type(module).__name__})"
    return "no routed experts"
