"""Operations of a decoder layer, fused: norms, rotary positions with page writes, gates and linears for few tokens."""

from stepwell_kernels.fused.norm import Norm
from stepwell_kernels.fused.ops import (
    add_rms_norm,
    gated,
    gated_linear,
    joined,
    linear,
    linear_add_norm,
    linear_parts,
    most_likely,
    project_and_write,
    rms_norm,
    rotate,
    rotate_and_write,
    turns,
)
from stepwell_kernels.fused.reference import Act, Spread

__all__ = [
    "Act",
    "Norm",
    "Spread",
    "add_rms_norm",
    "gated",
    "gated_linear",
    "joined",
    "linear",
    "linear_add_norm",
    "linear_parts",
    "most_likely",
    "project_and_write",
    "rms_norm",
    "rotate",
    "rotate_and_write",
    "turns",
]
