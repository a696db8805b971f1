"""What a report says of where and of what it was made."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from stepwell.config import Config
from stepwell.shown import SECRET
from stepwell_server.bench.results import Machine, Setting

BESIDE = ("torch", "triton", "transformers", "numpy", "uvicorn")
"""Packages whose version can matter to a figure."""
ASK_S = 10


def machine() -> Machine:
    """Where this process runs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(platform.platform(), _cpu(), cores, round(memory, 1), _devices())


def versions() -> dict[str, str]:
    """Python's, and those of Stepwell's distributions and of what they stand on."""
    found = {dist.metadata["Name"].lower(): dist.version for dist in distributions() if dist.metadata["Name"]}
    names = sorted(name for name in found if name.startswith("stepwell") or name in BESIDE)
    return {"python": platform.python_version(), **{name: found[name] for name in names}}


def settings(config: Config) -> list[Setting]:
    """What somebody set; secrets are hidden."""
    made = (line for line in config.shown() if line.origin != "default")
    return [Setting(f"{line.section}.{line.key}", line.value, line.origin) for line in made]


def discreet(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be told: settings that sound like secrets without their value."""
    return [_hidden(one) for one in arguments]


def _hidden(argument: str) -> str:
    name, given, _ = argument.partition("=")
    return f"{name}=***" if given and SECRET.fullmatch(name.rpartition(".")[2]) else argument


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _devices() -> list[str]:
    """Accelerators with their driver, as NVIDIA's tool names them; none where it is not there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    argv = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
