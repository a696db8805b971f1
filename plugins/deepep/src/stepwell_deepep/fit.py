"""Whether the library is here, which of its generations, and whether the machine fits."""

from __future__ import annotations

from stepwell import Finding
from stepwell_kernels.dispatch.fit import finding, folder, gpu_missing, nic_missing

INSTALL = "it needs DeepEP, which is built from its source (https://github.com/deepseek-ai/DeepEP)"


def normal_missing() -> str | None:
    """Why `deepep` cannot be used, in a sentence; None where nothing speaks against it."""
    return INSTALL if folder("deep_ep") is None else gpu_missing()


def elastic_missing() -> str | None:
    """The same of `deepep-v2`."""
    at = folder("deep_ep")
    if at is not None and not (at / "buffers" / "elastic.py").exists():
        return "the DeepEP that is installed has no ElasticBuffer: build 2.0 or newer, or use deepep"
    return normal_missing()


def low_latency_missing() -> str | None:
    """The same of `deepep-low-latency`."""
    return normal_missing() or nic_missing()


def check() -> Finding:
    """For `stepwell doctor`."""
    return finding("dispatch deepep", "deep_ep", normal_missing())
