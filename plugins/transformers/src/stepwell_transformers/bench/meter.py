"""How much memory something takes at its peak, beyond what was held before it began."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from stepwell import StepwellError

MIB = 2**20
THRESHOLD = 64 * 1024
"""Blocks from this size on go back to the system as soon as they are free, so that memory that was used is not kept."""
USUAL = 32 * MIB
"""What glibc's own threshold grows to by and by."""
M_MMAP_THRESHOLD = -3
CLEAR_PEAK = "5"
"""Written to clear_refs: the peak starts anew from what is resident now."""


class Meter(Protocol):
    """Begin, do it, read the peak."""

    what: str
    """What is counted, in words."""
    held: int
    """Bytes when it began."""

    def begin(self) -> None: ...
    def peak(self) -> int:
        """Bytes at most since then, beyond those held."""


@contextmanager
def metered(device: torch.device) -> Iterator[Meter]:
    """A meter of a device, or of this process where that is the CPU."""
    if device.type == "cuda":
        yield CudaMeter(device)
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, THRESHOLD)
    try:
        yield ProcessMeter(libc)
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, USUAL)


class CudaMeter:
    """What torch has allocated."""

    what = "allocated on the device"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.held = 0

    def begin(self) -> None:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self.held = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self.held


class ProcessMeter:
    """What of this process is resident."""

    what = "resident of the process"

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self.held = 0

    def begin(self) -> None:
        gc.collect()
        self._libc.malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
        except OSError as error:
            raise StepwellError(f"the system does not let a process start its peak of memory anew: {error}") from error
        self.held = _resident("VmRSS")

    def peak(self) -> int:
        return _resident("VmHWM") - self.held


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "Linux says it of every process"
    return int(found[1]) * 1024
