"""When to plan: where ranks wait for the hottest one, or a plan is old; never for nothing, and not too often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell import ExpertLoad, Placement

Layers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """When experts are placed anew."""

    below: float = 0.9
    """A layer is worth a plan when its ranks have on average less than such a share of what its hottest one has."""
    min_gap: int = 100
    """Passes with tokens between two plans, at least."""
    worse_by: float = 0.02
    """A layer that the last plan could not bring above `below` is worth another one only when it got worse by this."""
    max_age: int = 2000
    """Passes after which such a layer is worth another plan anyway; 0: never."""

    def __post_init__(self) -> None:
        if not 0 <= self.below <= 1:
            raise ValueError(f"below: {self.below} is no share; give 0 to 1")
        if self.min_gap < 1:
            raise ValueError(f"min_gap: {self.min_gap} passes; give 1 or more")
        if self.max_age < 0:
            raise ValueError(f"max_age: {self.max_age} passes; give 0 for never, or more")
        if not 0 <= self.worse_by <= 1:
            raise ValueError(f"worse_by: {self.worse_by} is no share; give 0 to 1")


@dataclass(frozen=True, slots=True)
class Due:
    """A plan is due."""

    layers: tuple[int, ...]
    """Those that it is due for."""
    worst: float
    """The least utilisation of a layer."""
    old: bool
    """Whether it is due only since the last plan is old."""


class Trigger:
    """Asked now and then; pure but for what the last plan reached."""

    def __init__(self, settings: TriggerSettings) -> None:
        self._settings = settings
        self._reached: Layers | None = None

    def due(self, load: ExpertLoad, placement: Placement, ranks: int, since: int) -> Due | None:
        """Whether to plan for `load` [layers, experts] on what is in use now, `since` passes after the last plan."""
        if since < self._settings.min_gap or not load.any():
            return None
        used = utilisation(load, placement, ranks)
        below = used < self._settings.below
        worse = below if self._reached is None else below & (used < self._reached - self._settings.worse_by)
        old = not worse.any() and 0 < self._settings.max_age <= since
        layers = np.flatnonzero(below if old else worse)
        return Due(tuple(layers.tolist()), float(used.min()), old) if len(layers) else None

    def planned(self, load: ExpertLoad, placement: Placement, ranks: int) -> None:
        """Learn what a layer could be brought to: this placement came of it, or the one in use was kept."""
        self._reached = utilisation(load, placement, ranks)


def utilisation(load: ExpertLoad, placement: Placement, ranks: int) -> Layers:
    """[layers]: what ranks have to do on average over what the hottest one has; 1 for a layer without tokens."""
    layers, experts = load.shape
    slots = placement.experts.astype(np.int64)
    at = slots + np.arange(layers)[:, None] * experts
    replicas = np.bincount(at.ravel(), minlength=layers * experts).reshape(layers, experts)
    share = np.take_along_axis(load / np.maximum(replicas, 1), slots, axis=1)
    by_rank = share.reshape(layers, ranks, -1).sum(axis=2)
    hottest = by_rank.max(axis=1)
    return np.divide(by_rank.mean(axis=1), hottest, out=np.ones(layers), where=hottest > 0)
