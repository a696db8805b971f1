"""What the experts of one forward are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def nothing() -> None:
    """Nobody else wants the device meanwhile."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a model's layers do not hand to their experts; the same on all ranks, but for `turn`."""

    prefill: bool = True
    """Whether any rank computes prompts in this step."""
    most: int | None = None
    """Tokens of the largest of several groups' batches; None: there is this one alone."""
    real: torch.Tensor | None = None
    """[tokens], which of them are no padding; None: all. Padding goes to no expert and is not counted."""
    turn: Callable[[], None] = nothing
    """Lets another batch compute while this one's tokens, or what became of them, are under way."""
