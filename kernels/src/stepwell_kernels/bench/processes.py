"""Ranks of a bench as processes of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from stepwell import StepwellError

PATIENCE_S = 900.0
"""Longer than any bench of ranks takes."""


class Ranked(Protocol):
    """What a rank is asked."""

    @property
    def rank(self) -> int: ...


def outputs(module: str, asked: Sequence[Ranked], folder: Path) -> list[bytes]:
    """What each rank prints of `python -m module ASKED`, once all have ended well. None is left."""
    files = [folder / f"rank-{one.rank}" for one in asked]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for one, path in zip(asked, files, strict=True):
            with path.open("wb") as file:
                command = [sys.executable, "-m", module, msgspec.json.encode(one).decode()]
                processes.append(subprocess.Popen(command, stdout=file))
        _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [path.read_bytes() for path in files]


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all have ended well; StepwellError as soon as one has not."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        codes = [process.poll() for process in started]
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed:
            raise StepwellError(f"rank {failed[0][0]} ended with status {failed[0][1]}; what it said is above")
        if None not in codes:
            return
        if time.monotonic() > deadline:
            raise StepwellError(f"ranks did not end within {PATIENCE_S:.0f} s")
        time.sleep(0.05)
