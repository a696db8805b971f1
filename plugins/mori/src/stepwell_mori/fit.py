"""Whether the library and an AMD GPU are here."""

from __future__ import annotations

from pathlib import Path

from stepwell import Finding
from stepwell_kernels.dispatch.fit import finding, folder


def missing(kfd: Path = Path("/dev/kfd")) -> str | None:
    """Why it cannot be used, in a sentence; None where nothing speaks against it."""
    if folder("mori") is None:
        return "it needs MORI: pip install 'stepwell-mori[library]'"
    if not kfd.exists():
        return "it needs AMD GPUs with ROCm, and there is no /dev/kfd here: on NVIDIA use deepep, nixl-ep or symm"
    return None


def check() -> Finding:
    """For `stepwell doctor`."""
    return finding("dispatch mori", "mori", missing(), "mori.ops, mori.shmem")
