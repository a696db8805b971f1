"""What became of a model's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Fused:
    """The forwards that took the place of modules' own."""

    lines: tuple[str, ...] = ()
    """What was fused, and what was left and why."""
    forwards: tuple[tuple[nn.Module, Forward], ...] = ()

    @contextmanager
    def own(self) -> Iterator[None]:
        """The model by its own code, for as long."""
        for module, _ in self.forwards:
            del module.forward
        try:
            yield
        finally:
            for module, forward in self.forwards:
                module.forward = forward
