"""A forward that is under way: what its layers' experts agree on, and have of it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from stepwell import Dispatcher
from stepwell_transformers.experts.told import Told


@dataclass(frozen=True, slots=True)
class Pending:
    """A shared expert's input and its answer, one of which came out of turn."""

    given: torch.Tensor
    answer: torch.Tensor


@dataclass(frozen=True, slots=True)
class Forward:
    """One batch's way through the model."""

    told: Told
    dispatcher: Dispatcher[torch.Tensor]
    room: int
    """Tokens of a rank in one dispatch."""
    rounds: int
    """Dispatches of a layer: as many as the rank with most tokens needs."""
    shares: bool = False
    """Whether shared experts are computed while tokens are under way."""
    shared: dict[object, Pending] = field(default_factory=dict)
    """By shared expert: what it was asked for and has not made yet, or made and was not asked for yet."""


RUNNING: ContextVar[Forward | None] = ContextVar("RUNNING", default=None)
"""Not on the model, which two batches may be on their way through; nor may a layer hand it on to its experts."""
