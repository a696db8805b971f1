"""What `stepwell doctor` says of exchanges between ranks, as far as it can be known without importing torch."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell import Finding
from stepwell_kernels.dispatch.fit import gpu_missing, torch_cuda


def collectives() -> Finding:
    """Over what the ranks of this machine exchange tokens."""
    if gpu_missing() is not None:
        return Finding("ok", "ranks exchange tokens over gloo, between CPUs: there is no NVIDIA GPU here")
    if torch_cuda() is None:
        return Finding(
            "warn", "ranks exchange tokens between CPUs: torch here is built without CUDA; install one with it"
        )
    if find_spec("triton") is None:
        return Finding("warn", "dispatch on GPUs needs Triton: pip install stepwell-kernels[cuda]")
    return Finding("ok", "ranks exchange tokens over NCCL")
