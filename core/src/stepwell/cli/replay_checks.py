"""What the options of a replay must not say: two things at once, or one that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepwell.errors import ConfigError
from stepwell.replay.compare import SPEED, USE, Policy, Sweep
from stepwell.sources import from_sets

TIMED = (SPEED, "engine", "schedule", "write", "retain", "prefetch", "replay")
"""What a replay without time has no use for; its eviction policy may read a plugin's own section."""
PAGES = "cache.device_pages"


def no_time(*, model: bool, ablate: bool, compare: bool, speed: float, swept: Sequence[Sweep]) -> None:
    """ConfigError for what --instant has no use for: it needs time, or knows more than blocks."""
    if model:
        raise ConfigError("--instant knows no model, only blocks: leave --instant or --model out")
    given = {"--ablate": ablate, "--compare": compare, "--speed": speed != 1.0}
    given |= {f"--sweep {one.key}": one.key.split(".")[0] in TIMED for one in swept}
    for option in [option for option, there in given.items() if there]:
        raise ConfigError(f"{option} needs time: leave --instant or {option} out")
    for key in [one.key for one in swept if one.key.startswith("cache.") and one.key != PAGES]:
        raise ConfigError(f"--instant knows of the cache only {PAGES}: leave --instant or --sweep {key} out")


def said_twice(
    sets: Sequence[str], speed: float, model: bool, compare: Sequence[Policy], swept: Sequence[Sweep]
) -> None:
    """ConfigError for what is compared or swept, and said by another option as well."""
    given = {".".join(at): f"--set {'.'.join(at)}" for at in from_sets(sets)}
    given |= {"replay.model": "--model"} if model else {}
    if compare and USE in given:
        names = ",".join(map(str, compare))
        raise ConfigError(f"--compare {names} and --set {USE} both say which policies are replayed: leave one out")
    for one in swept:
        if one.key in given:
            raise ConfigError(f"--sweep {one.key} and {given[one.key]} both say what it is: leave one out")
        if one.key == SPEED and speed != 1.0:
            raise ConfigError("--speed and --sweep speed=... both say how fast arrivals come: leave one out")


def writable(path: Path) -> None:
    """ConfigError, before the work is done, where its page could not be written."""
    if path.is_dir():
        raise ConfigError(f"--html {path}: this is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"--html {path}: there is no folder {path.parent}")
