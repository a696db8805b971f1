"""The `[runner.experts]` table."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell_transformers.balance import TriggerSettings

MOST_SPARE = 4096
"""More than any model has experts in a layer."""


@dataclass(frozen=True, slots=True)
class ExpertsSettings:
    """How routed experts are kept, and when they change their places."""

    spare: int = 0
    """Slots for a second and further replica of experts, over all ranks, beside one slot for each expert."""
    look_every: int = 100
    """Steps between two looks at what experts were asked for."""
    half_life: float = 1000.0
    """Steps after which tokens count half."""
    layers: int = 1
    """Layers that change their places between the same two steps."""
    vote_every: int = 4
    """Steps between two votes while a plan is made or weights are carried; a vote is a message between all ranks."""
    deadline: int = 2000
    """Steps after which a plan, or a batch of weights, is given up by all ranks."""
    trigger: TriggerSettings = field(default_factory=TriggerSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.spare <= MOST_SPARE:
            raise ValueError(f"spare: {self.spare} is not between 0 and {MOST_SPARE}")
        for name in ("look_every", "layers", "vote_every", "deadline"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} is less than 1")
        if not self.half_life > 0:
            raise ValueError(f"half_life: {self.half_life} is not above 0")
