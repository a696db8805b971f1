"""Whether GPUDirect Storage can be used. NIXL may not be asked: without a driver its backend hangs as it starts."""

from __future__ import annotations

import ctypes
from pathlib import Path

from stepwell import PluginError
from stepwell_nixl import client

DRIVER = "libcuda.so.1"
CUFILE = "libcufile.so.0"


def missing(devices: Path = Path("/dev")) -> str | None:
    """Why not, in one sentence."""
    why = client.missing()
    if why is not None:
        return why
    if not any(devices.glob("nvidia[0-9]*")):
        return "it needs an NVIDIA GPU, and there is none here: use nixl, which keeps pages in the same way"
    if not _loads(DRIVER):
        return f"it needs NVIDIA's driver, and {DRIVER} cannot be loaded"
    if not _loads(CUFILE):
        return (
            f"it needs GPUDirect Storage, and {CUFILE} cannot be loaded: install it with CUDA, or pip's nvidia-cufile"
        )
    return None


def check() -> None:
    """Raise where it cannot be used."""
    why = missing()
    if why is not None:
        raise PluginError(f"storage.use = 'nixl-gds': {why}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
