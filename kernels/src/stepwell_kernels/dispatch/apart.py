"""A place of its own for a piece of a dispatcher: two pieces of one kind would meet each other at the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepwell import Context


@dataclass(frozen=True, slots=True)
class Apart(Context):
    """What a piece called `name` is told: all that the whole is, and where its own ranks meet."""

    whole: Context
    name: str

    @property
    def meet(self) -> str:
        return f"{self.whole.meet}#{self.name}" if self.whole.meet else ""

    @property
    def commons(self) -> str:
        return f"{self.whole.commons}#{self.name}" if self.whole.commons else ""

    @property
    def rank(self) -> int:
        return self.whole.rank

    @property
    def world(self) -> int:
        return self.whole.world

    @property
    def group(self) -> int:
        return self.whole.group

    @property
    def groups(self) -> int:
        return self.whole.groups

    @property
    def device(self) -> str:
        return self.whole.device

    @property
    def clock(self) -> Callable[[], float]:
        return self.whole.clock

    @property
    def log(self) -> logging.Logger:
        return self.whole.log

    @property
    def state_dir(self) -> Path:
        return self.whole.state_dir
