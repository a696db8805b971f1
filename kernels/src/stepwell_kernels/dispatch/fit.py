"""What libraries for experts need of a machine, as far as it can be known without importing any of them."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from stepwell import Finding

MOST = 1024
"""Tokens of a rank, at most, in the low latency of DeepEP and its kin: their kernels mark what is complete by it."""
PROBE_S = 20.0


def gpu_missing(devices: Path = Path("/dev")) -> str | None:
    """Why no NVIDIA GPU can be used here."""
    if not any(devices.glob("nvidia[0-9]*")):
        return "it needs an NVIDIA GPU, and there is none here: use collective"
    if not loads("libcuda.so.1"):
        return "it needs NVIDIA's driver, and libcuda.so.1 cannot be loaded"
    return None


def nic_missing(nics: Path = Path("/sys/class/infiniband")) -> str | None:
    """Why GPUs cannot drive a network card by themselves here (IBGDA)."""
    if not any(nics.glob("mlx5_*")):
        return "it needs an mlx5 network card that GPUs can drive by themselves (IBGDA): use nixl-ep"
    return None


def folder(package: str) -> Path | None:
    """Where a package is installed, which is not imported for it."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def torch_cuda() -> str | None:
    """The CUDA that torch is built for, such as `13.0`; None without one. It is read: an import takes a second."""
    at = folder("torch")
    text = (at / "version.py").read_text() if at is not None and (at / "version.py").exists() else ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found else None


def cuda_mismatch(package: str, major: str) -> str | None:
    """Why a package for a CUDA of this major does not go with the torch that is here."""
    have = torch_cuda()
    if have is not None and have.split(".")[0] == major:
        return None
    return f"{package} is built for CUDA {major}, and torch here for {'none' if have is None else have}"


def loads(library: str) -> bool:
    """Whether the system has it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def finding(offers: str, package: str, why: str | None, modules: str = "") -> Finding:
    """For `stepwell doctor`: nothing is wrong where the package is not there; where it is, it should load.

    `modules`: what is to be imported of it, by commas; else the package itself.
    """
    if find_spec(package) is None:
        return Finding("ok", f"{package} is not installed, so {offers} cannot be chosen")
    if why is not None:
        return Finding("warn", f"{offers} cannot be used: {why}")
    command = [sys.executable, "-c", f"import torch, {modules or package}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        return Finding("fail", f"{package} does not load ({said})")
    return Finding("ok", f"{package} loads")
