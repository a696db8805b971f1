"""What several kernels share: activations, dependent launches and prefetches."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@cache
def dependent(device: torch.device) -> int:
    """Whether kernels may start before the one ahead has ended (from Hopper on)."""
    return int(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0))


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
def prefetched(
    weight,
    first,
    rows,
    cols,
    begin,
    ROWS: tl.constexpr,  # noqa: N803
    BYTES: tl.constexpr,  # noqa: N803
    THREADS: tl.constexpr,  # noqa: N803
):
    """Start the first BYTES of each row of a tile on their way to L2; one chunk a thread."""
    each: tl.constexpr = max(min(THREADS // ROWS, BYTES // 16), 1)
    chunk: tl.constexpr = BYTES // each
    at = tl.arange(0, each * ROWS)
    row = tl.minimum(first + at // each, rows - 1).to(tl.int64)
    column = tl.minimum(begin + (at % each) * (chunk // 2), cols - chunk // 2)
    pointers = (weight + row * cols + column).to(tl.int64, bitcast=True)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [pointers, tl.full(pointers.shape, chunk, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


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
