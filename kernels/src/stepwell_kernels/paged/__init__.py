"""Attention on CUDA, straight from the pages: what a step computes lies in device memory, so that a CUDA graph replays.

The kernels are in `write`, `decode`, `prefill` and `attend`, which import Triton; this package itself does not.
"""

from stepwell_kernels.paged.place import Place, Tables
from stepwell_kernels.paged.step import Step, StepBuffers, StepShape

__all__ = ["Place", "Step", "StepBuffers", "StepShape", "Tables"]
