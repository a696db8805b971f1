"""What several kernels share: activations, roundings, and launches that depend on the kernel ahead."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stepwell_kernels.fused.device.plans import CROWDED

EARLY, LATE = 1, 2
"""When a kernel lets the next one start: at once, or when its own reads are done. 0: when it has ended."""


@cache
def dependent(device: torch.device) -> int:
    """EARLY where kernels may start before the one ahead has ended (from Hopper on), else 0."""
    return EARLY if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0) else 0


def between(device: torch.device, tokens: int) -> int:
    """When a small kernel between two products lets the second one start.

    Products of 2 to CROWDED tokens run in one wave, several programs on a processor: started before the product ahead
    has left, they would crowd on the processors that are free first (one H200, batch 16: 122 against 115 us a layer).
    """
    return LATE if dependent(device) and 1 < tokens <= CROWDED else dependent(device)


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def activated(x, ACT: tl.constexpr):  # noqa: N803
    """SiLU or GELU of a float32 tensor."""
    if ACT == "silu":
        return x * tl.sigmoid(x)
    if ACT == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + (2 * tl.sigmoid(2 * inner) - 1))
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def early(PDL: tl.constexpr):  # noqa: N803
    """Let the next kernel start now; what it may do before this one ends is up to its own `waited`."""
    if PDL == 1:
        gdc_launch_dependents()


@triton.jit
def late(PDL: tl.constexpr):  # noqa: N803
    """Like `early`, but once this kernel's own reads are done."""
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
def waited(PDL: tl.constexpr):  # noqa: N803
    """All kernels before this one have ended, and what they wrote is seen from here on."""
    if PDL > 0:
        gdc_wait()


@triton.jit
def streamed(at, inside, WHOLE: tl.constexpr):  # noqa: N803
    """Weights [rows, columns] that nobody reads again soon."""
    if WHOLE:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=inside[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def gathered(at, inside, bias, part_stride, PARTS: tl.constexpr, BIAS: tl.constexpr, kind: tl.constexpr):  # noqa: N803
    """A product's values, float32 but rounded to `kind`: the sum of its parts in their order, plus bias."""
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        value += tl.load(at + part * part_stride, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias, mask=inside, other=0.0).to(tl.float32)
    return value.to(kind).to(tl.float32)


@triton.jit
def scaled(value, square, weight, WEIGHT: tl.constexpr, LATE: tl.constexpr, kind: tl.constexpr):  # noqa: N803
    """float32 `value` by the root of `square`, times weight, rounded to `kind` where a module rounds."""
    value = value * tl.rsqrt(square)
    if WEIGHT:
        value = value * weight if LATE else value.to(kind).to(tl.float32) * weight.to(kind).to(tl.float32)
    return value.to(kind).to(tl.float32)
