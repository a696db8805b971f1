"""What the experts of one forward are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from stepwell import Dispatcher


def nothing() -> None:
    """Nobody else wants the device meanwhile."""


def same(dispatcher: Dispatcher[Any]) -> Dispatcher[Any]:
    """Dispatches go through that itself."""
    return dispatcher


@dataclass(frozen=True, slots=True)
class Told:
    """What a model's layers do not hand to their experts; the same on all ranks, but for `turn` and `over`."""

    prefill: bool = True
    """Whether any rank computes prompts in this step."""
    most: int | None = None
    """Tokens of the largest of several groups' batches; None: there is this one alone."""
    real: torch.Tensor | None = None
    """[tokens], which of them are no padding; None: all. Padding goes to no expert and is not counted."""
    turn: Callable[[], None] = nothing
    """Lets another batch compute while this one's tokens, or what became of them, are under way."""
    over: Callable[[Dispatcher[Any]], Dispatcher[Any]] = same
    """What this batch's dispatches go through on their way to the dispatcher that was picked."""
