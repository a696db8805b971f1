"""What an offer is told of where it runs, and how the piece is had from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepwell.abc.storage import Storage
from stepwell.errors import PluginError, StepwellError
from stepwell.offers import Capability, provided
from stepwell.settings import TierSettings

if TYPE_CHECKING:
    from stepwell.config import (
        Chosen,
    )  # only a type here, and much to import for a process that a storage has to itself

T = TypeVar("T")

STUCK = 3.0
"""A call that is away for so many times `tiers.timeout_s` ends the process that it is in."""


@dataclass(frozen=True)
class Place:
    """What an offer is told of where it runs; a Context."""

    name: str
    device: str
    folder: Callable[[], Path]
    clock: Callable[[], float] = time.monotonic
    rank: int = 0
    world: int = 1
    meet: str = ""
    group: int = 0
    groups: int = 1
    commons: str = ""

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"stepwell.{self.name}")

    @property
    def state_dir(self) -> Path:
        return self.folder() / self.name


def make(choice: Chosen, kind: type[T], place: Place) -> T:
    """What a section's offer makes of its settings. PluginError, with the setting, where it raises or is no `kind`."""
    return made(choice.offer.make, choice.settings, kind, place, where(choice))


def where(choice: Chosen) -> str:
    """A choice as messages name it."""
    return f"{choice.section}.use = {choice.offer.name!r} ({choice.origin})"


def made(factory: Callable[..., object], settings: object, kind: type[T], place: Place, where: str) -> T:
    """What a factory makes of settings. PluginError that begins with `where` if it raises or makes no `kind`."""
    try:
        piece = factory(settings, place)
    except StepwellError:
        raise
    except Exception as error:
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(piece, kind):
        raise PluginError(f"{where}: made a {type(piece).__name__}, which is no {kind.__name__}")
    return piece


def make_storage(choice: Chosen, place: Place, tiers: TierSettings, *, shared: bool = True) -> Storage:
    """The chosen storage, in this process or in one of its own, as it asks for and `tiers.own_process` says.

    `parts.attach_storage` attaches it. `shared`: whether the host tier's memory can be mapped by another process.
    """
    apart = tiers.own_process
    if apart == "auto":
        apart = Capability.APART in provided(choice.offer, choice.settings)
    if apart and not shared:
        place.log.warning(
            "%s runs in this process, since the host tier's memory cannot be shared on this machine", where(choice)
        )
        apart = False
    if apart:
        # Asked for here, since that module needs the two above in the process that it starts.
        from stepwell.engine.apart.client import ApartStorage

        return ApartStorage(choice, place, limit_s=STUCK * tiers.timeout_s)
    return make(choice, Storage, place)  # type: ignore[type-abstract]
