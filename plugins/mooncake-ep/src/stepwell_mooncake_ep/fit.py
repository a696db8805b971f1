"""Whether a wheel with expert parallelism is here, and whether the machine has what it loads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from stepwell import Finding
from stepwell_kernels.dispatch.fit import cuda_mismatch, finding, folder, gpu_missing, loads

INSTALL = "pip install 'stepwell-mooncake-ep[cuda13]'"
WHEELS = {"mooncake-transfer-engine-cuda13": "13", "mooncake-transfer-engine": "12"}
SYSTEM = {
    "libibverbs.so.1": "apt install libibverbs1",
    "libmlx5.so.1": "apt install ibverbs-providers",
    "libnuma.so.1": "apt install libnuma1",
}
"""Libraries that no wheel brings, and how Debian and Ubuntu install them."""


def missing() -> str | None:
    """Why it cannot be used, in a sentence; None where nothing speaks against it."""
    at = folder("mooncake")
    if at is None:
        return f"it needs Mooncake: {INSTALL}"
    if not any(at.glob("_ep*.so")) and not any(at.glob("ep*.so")):
        return f"the Mooncake that is installed was built without expert parallelism: uninstall it, then {INSTALL}"
    for library, remedy in SYSTEM.items():
        if not loads(library):
            return f"Mooncake needs {library} of the system: {remedy}"
    mismatches = [cuda_mismatch(wheel, major) for wheel, major in WHEELS.items() if _installed(wheel)]
    return next(filter(None, mismatches), None) or gpu_missing()


def check() -> Finding:
    """For `stepwell doctor`."""
    return finding("dispatch mooncake-ep", "mooncake", missing(), "mooncake.mooncake_ep_buffer, mooncake.ep")


def _installed(wheel: str) -> bool:
    try:
        version(wheel)
    except PackageNotFoundError:
        return False
    return True
