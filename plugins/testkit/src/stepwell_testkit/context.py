"""What core hands to a factory, for tests."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class KitContext:
    """A `stepwell.Context`, of the only rank on the CPU unless it says otherwise."""

    state_dir: Path
    rank: int = 0
    world: int = 1
    meet: str = ""
    group: int = 0
    groups: int = 1
    commons: str = ""
    device: str = "cpu"
    clock: Callable[[], float] = time.monotonic
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("stepwell.kit"))
