"""The folder: which segments there are, and what kind of filesystem it lies on."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

from stepwell import ConfigError
from stepwell_threefs.config import ThreefsConfig

FORMAT = "stepwell-3fs.1"
NAME = re.compile(r"pages-([0-9a-f]{12})-([0-9a-f]{16})\.index")
HIGHEST = 1 << 63
LATEST = (1 << 48) - 1


class Folder:
    """A folder that other processes, on this node and on others, may use at the same time."""

    def __init__(self, config: ThreefsConfig) -> None:
        self.path = config.path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            marker = self.path / FORMAT
            others = [path.name for path in self.path.glob("stepwell-3fs.*") if path.name != FORMAT]
            if others:
                raise ConfigError(
                    f"storage.path: {self.path} has another format ({others[0]}); name another folder, or remove it"
                )
            marker.touch()
            self.segments()
        except OSError as error:
            raise ConfigError(
                f"storage.path: {self.path} cannot be used ({error.strerror}); name one that this user may write to"
            ) from None
        self.remote = filesystem_of(self.path).startswith("fuse")
        self.direct = self._direct()

    def segments(self) -> dict[int, str]:
        """Number and stem of each segment that is there, oldest first."""
        found = sorted(match[0] for name in _names(self.path) if (match := NAME.fullmatch(name)))
        return {number_of(name): name.removesuffix(".index") for name in found}

    def new_stem(self) -> str:
        """A name that nobody has used. Names sort by age, whatever a clock says: it follows those that are there."""
        newest = max(map(_age_of, self.segments().values()), default=-1)
        age = min(max(time.time_ns() // 1_000_000, newest + 1), LATEST)
        return f"pages-{age:012x}-{secrets.randbelow(HIGHEST):016x}"

    def remove(self, stem: str) -> None:
        """Take a segment away: its index first, so that nobody finds pages without bytes."""
        for suffix in (".index", ".data"):
            (self.path / f"{stem}{suffix}").unlink(missing_ok=True)

    def _direct(self) -> bool:
        try:
            os.close(os.open(self.path / FORMAT, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
        return True


def _names(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries]


def number_of(stem: str) -> int:
    """The number in a segment's name."""
    return int(stem[19:35], 16)


def _age_of(stem: str) -> int:
    return int(stem[6:18], 16)


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that a folder lies on, as the kernel names it; empty where it does not say."""
    real = os.path.realpath(path)
    best, kind = -1, ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, place, fstype, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= best:
            best, kind = len(place), fstype
    return kind
