"""Whether this machine is one that it runs on, in sentences."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

from stepwell import Finding

Reaches = Callable[[int, int], bool]
"""From which device to which."""
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""What an NVIDIA driver leaves behind; looking is quicker than importing torch."""


def missing() -> str | None:
    """What is not there, without importing it; whether devices reach each other shows when ranks meet."""
    if find_spec("triton") is None:
        return "it needs Triton: pip install stepwell-symm[cuda]"
    if not any(driver.exists() for driver in DRIVERS):
        return "it needs NVIDIA GPUs that reach each other's memory, and there is no NVIDIA driver here"
    return None


def finding() -> Finding:
    """Of `stepwell doctor`."""
    lacks = missing()
    if lacks is not None:
        return Finding("warn", f"dispatch by symm: {lacks}")
    import torch

    if not torch.cuda.is_available():
        return Finding("warn", "dispatch by symm: torch finds no CUDA device; install a CUDA build of torch")
    return judged(torch.cuda.device_count(), torch.cuda.can_device_access_peer)


def judged(devices: int, reaches: Reaches) -> Finding:
    """For so many devices, of which one may reach the memory of another."""
    if devices < 2:
        return Finding("warn", "dispatch by symm: there is one CUDA device, so no other to dispatch to")
    apart = [pair for pair in permutations(range(devices), 2) if not reaches(*pair)]
    if apart:
        pairs = ", ".join(f"{one} to {other}" for one, other in apart)
        return Finding("warn", f"dispatch by symm: no access from device {pairs}; keep such devices out of one group")
    return Finding("ok", f"dispatch by symm: all {devices} CUDA devices reach each other's memory")
