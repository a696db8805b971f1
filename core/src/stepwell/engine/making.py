"""What an offer is told of where it runs, and how the piece is had from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stepwell.abc.storage import Storage
from stepwell.config import Chosen
from stepwell.errors import PluginError, StepwellError
from stepwell.settings import TierSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """What an offer is told of where it runs; a Context."""

    name: str
    device: str
    folder: Callable[[], Path]
    clock: Callable[[], float] = time.monotonic
    rank: int = 0
    world: int = 1

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"stepwell.{self.name}")

    @property
    def state_dir(self) -> Path:
        return self.folder() / self.name


def make(choice: Chosen, kind: type[T], place: Place) -> T:
    """What a section's offer makes of its settings. PluginError, with the setting, where it raises or is no `kind`."""
    where = f"{choice.section}.use = {choice.offer.name!r} ({choice.origin})"
    try:
        made: object = choice.offer.make(choice.settings, place)
    except StepwellError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(made, kind):
        raise PluginError(f"{where}: made a {type(made).__name__}, which is no {kind.__name__}")
    return made


def make_storage(choice: Chosen, place: Place, tiers: TierSettings) -> Storage:
    """The chosen storage, in this process or in one of its own; both are attached by `parts.attach_storage`."""
    return make(choice, Storage, place)  # type: ignore[type-abstract]
