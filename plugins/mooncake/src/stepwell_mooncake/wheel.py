"""Which of Mooncake's wheels is installed, and whether it can load here.

There are three, for CPU, CUDA 12 and CUDA 13, and all install the same package. Each needs system libraries that no
wheel brings. What is cheap to know is known without importing the client; `stepwell doctor` tries it in a process.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from stepwell import Finding

LIBIBVERBS = ("libibverbs.so.1", "install it (Debian and Ubuntu: apt install libibverbs1)")
LIBCUDA = (
    "libcuda.so.1",
    "install the NVIDIA driver, or on a machine without a GPU:"
    " pip uninstall {wheel}; pip install mooncake-transfer-engine-non-cuda",
)
WHEELS = {
    "mooncake-transfer-engine-non-cuda": (LIBIBVERBS,),
    "mooncake-transfer-engine": (LIBIBVERBS, LIBCUDA),
    "mooncake-transfer-engine-cuda13": (LIBIBVERBS, LIBCUDA),
}
"""Each wheel, and libraries that it needs from the system."""
INSTALL = "pip install 'stepwell-mooncake[cpu]', or [cuda12] or [cuda13] on a machine with that CUDA, one of them only"
PROBE_S = 10.0


def missing() -> str | None:
    """Why the client cannot be used, in a sentence; None where nothing speaks against it."""
    wheels = _installed()
    if len(wheels) > 1:
        return f"{' and '.join(wheels)} overwrite each other: uninstall both, then {INSTALL}"
    if find_spec("mooncake") is None:
        return f"its client is not installed: {INSTALL}"
    for wheel in wheels:
        for library, remedy in WHEELS[wheel]:
            if not _loads(library):
                return f"{wheel} is installed, but {library} is missing: {remedy.format(wheel=wheel)}"
    return None


def why_not(error: ImportError) -> str:
    """A sentence for a client that did not load."""
    return missing() or f"{' '.join(_installed()) or 'the package mooncake'} does not load ({error}): {INSTALL}"


def finding() -> Finding:
    """For `stepwell doctor`, which says by itself why a storage that a config names cannot be used."""
    if find_spec("mooncake") is None:
        return Finding("ok", "no client is installed, so storage mooncake cannot be chosen")
    reason = missing()
    if reason is not None:
        return Finding("warn", f"storage mooncake cannot be used: {reason}")
    names = [f"{wheel} {version(wheel)}" for wheel in _installed()] or ["the package mooncake"]
    try:
        _probe()
    except (OSError, subprocess.SubprocessError) as error:
        text = getattr(error, "stderr", None) or str(error)
        return Finding("fail", f"{names[0]} does not load ({text.strip().splitlines()[-1]}): {INSTALL}")
    return Finding("ok", f"{names[0]} loads")


def _probe() -> None:
    command = [sys.executable, "-c", "import mooncake.store"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROBE_S)


def _installed() -> list[str]:
    found = []
    for wheel in WHEELS:
        try:
            version(wheel)
        except PackageNotFoundError:
            continue
        found.append(wheel)
    return found


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
