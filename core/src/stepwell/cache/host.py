"""How much memory this machine lets the process take, and who says so.

A container's limit is believed where there is one: what a machine says of itself may be that of its host, or, where
memory is plugged in as it is used, much less than there is to have.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepwell.errors import ConfigError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""A limit from here on is none."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that can still be taken."""

    nbytes: int
    said: str
    """By what, with its numbers."""


def demand(nbytes: int, setting: str, what: str = "", *, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
    """Raise ConfigError where the host tier's `nbytes` cannot be had; warn where the machine seems not to have them."""
    room = container(proc, cgroup) or machine(proc)
    if room is None:
        return
    if nbytes > room.nbytes:
        raise ConfigError(
            f"the host tier needs {size(nbytes)}{what} and {size(room.nbytes)} of memory are free "
            f"({room.said}): lower {setting}"
        )
    free = _meminfo(proc).get("MemAvailable")
    if free is not None and nbytes > free:
        logging.getLogger("stepwell.arena").warning(
            "the host tier needs %s and the system says that %s are available (%s); lower %s if it is right",
            *(size(nbytes), size(free), room.said, setting),
        )


def container(proc: Path = PROC, cgroup: Path = CGROUP) -> Room | None:
    """What the least of the limits over this process leaves; None: it has none."""
    rooms = []
    for folder, limit_name, used_name in _levels(proc, cgroup):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            limit, used = int((folder / limit_name).read_text()), int((folder / used_name).read_text())
            used = max(0, used - _reclaimable(folder))
            if limit < NO_LIMIT:
                rooms.append(Room(max(0, limit - used), f"{limit_name} {size(limit)}, {size(used)} used"))
    return min(rooms, key=lambda room: room.nbytes, default=None)


def machine(proc: Path = PROC) -> Room | None:
    """What the machine has beside what this process holds; None where the system does not say."""
    total = _meminfo(proc).get("MemTotal")
    if total is None:
        return None
    own = 0
    with suppress(OSError, ValueError, IndexError):
        own = int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Room(max(0, total - own), f"MemTotal {size(total)}, {size(own)} used by this process")


def _levels(proc: Path, cgroup: Path) -> Iterator[tuple[Path, str, str]]:
    """Groups of both kinds that hold this process, from its own up; in a container its own is often the mount."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    second, first = [Path()], [Path()]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        if not controllers:
            second = [own, *own.parents]
        elif "memory" in controllers.split(","):
            first = [own, *own.parents]
    for level in second:
        yield cgroup / level, "memory.max", "memory.current"
    for level in first:
        yield cgroup / "memory" / level, "memory.limit_in_bytes", "memory.usage_in_bytes"


def _reclaimable(folder: Path) -> int:
    """Bytes of files that are only kept for speed, such as weights that were read: they give way."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            found[name] = int(value)
    prefix = "total_" if "total_inactive_file" in found else ""
    return found.get(f"{prefix}inactive_file", 0) + found.get(f"{prefix}active_file", 0)


def _meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            name, value = line.split(":", 1)
            if value.endswith(" kB"):
                found[name] = int(value.split()[0]) * 1024
    return found


def size(nbytes: int) -> str:
    """Bytes for people."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"
