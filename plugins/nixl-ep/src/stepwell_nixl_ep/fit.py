"""Which of NIXL's wheels is here, and whether it has an extension for the torch that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from stepwell import Finding
from stepwell_kernels.dispatch.fit import cuda_mismatch, finding, folder, gpu_missing

PACKAGES = {"nixl_ep_cu13": "13", "nixl_ep_cu12": "12", "nixl_ep": None}
"""What wheels for the two CUDAs call it, and its own build; and the CUDA that each needs."""
INSTALL = "pip install 'stepwell-nixl-ep[cu13]' (or [cu12], as the torch that is installed)"


def package() -> str | None:
    """The one that is installed."""
    return next((name for name in PACKAGES if folder(name) is not None), None)


def missing() -> str | None:
    """Why it cannot be used, in a sentence; None where nothing speaks against it."""
    name = package()
    at = folder(name) if name else None
    if name is None or at is None:
        return f"it needs NIXL with its expert parallelism: {INSTALL}"
    wanted, built = torch_tag(), sorted(file.name.split(".")[0] for file in at.glob("nixl_ep_cpp_torch*.so"))
    if built and f"nixl_ep_cpp_torch{wanted}" not in built:
        have = ", ".join(each.removeprefix("nixl_ep_cpp_torch") for each in built)
        return f"the NIXL that is installed is built for torch {have}, and {wanted} is installed: take another NIXL"
    major = PACKAGES[name]
    mismatch = cuda_mismatch(name, major) if major else None
    return f"{mismatch}: {INSTALL}" if mismatch else gpu_missing()


def torch_tag() -> str:
    """`213` for torch 2.13, as extensions are named."""
    try:
        return "".join(version("torch").split(".")[:2])
    except PackageNotFoundError:
        return "none"


def check() -> Finding:
    """For `stepwell doctor`."""
    return finding("dispatch nixl-ep", package() or "nixl_ep", missing())
