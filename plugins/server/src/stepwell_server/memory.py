"""Resident memory of the server's processes: this one, and the others that the same launcher started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
NAMES = {"stepwell_server.front": "front", "stepwell.process": "engine", "stepwell.engine.ranks": "rank"}
"""Processes by the module that they run."""


def family() -> dict[str, int]:
    """Bytes by kind of process; nothing where the system does not tell."""
    parent = os.getppid()
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        found["launcher"] = resident(parent)
        for child in _below(parent):
            name = _name(child)
            found[name] = found.get(name, 0) + resident(child)
    return found


def _below(pid: int) -> list[int]:
    """What a process has started, and what those have."""
    found = [
        int(child)
        for thread in (PROC / str(pid) / "task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [one for child in found for one in (child, *_below(child))]


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _name(pid: int) -> str:
    words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return next((NAMES[word] for word in map(os.fsdecode, words) if word in NAMES), "other")
