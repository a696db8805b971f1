"""What a config says about a model's experts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from stepwell_transformers.experts.dispatchers import Choice
from stepwell_transformers.experts.found import routed
from stepwell_transformers.experts.place import ExpertPlace
from stepwell_transformers.experts.settings import ExpertsSettings
from stepwell_transformers.experts.slots import Slots, check_even, first_row


@dataclass(frozen=True, slots=True)
class Asked:
    """What the config says about a model's experts, and where it is so."""

    name: str
    """Of the model."""
    normal: Choice
    decode: Choice | None
    settings: ExpertsSettings
    place: ExpertPlace
    tokens: int
    """Of the largest step that is expected, and of the largest of decodes alone; more go in several rounds."""
    decodes: int
    log: logging.Logger

    def cuts(self, model: torch.nn.Module) -> Mapping[str, Slots]:
        """What this rank takes of experts' weights, by name. ConfigError where they cannot be spread."""
        found = routed(model, self.name)
        check_even(found[0].count, self.settings.spare, self.place.world, self.name)
        row = first_row(found[0].count, self.settings.spare)
        mine = Slots.of(row, self.place.rank, self.place.world)
        return {f"{layer.name}.{weight}": mine for layer in found for weight in layer.weights}
