"""A link that takes its time on a CUDA device: a kernel of one block that counts it, beside what computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def spin_kernel(rows, ns_a_row, latency_ns):
    """Come to an end that many nanoseconds after the begin."""
    begin = globaltimer()
    long = (tl.load(rows).to(tl.float32) * ns_a_row + latency_ns).to(tl.int64)
    while globaltimer() - begin < long:
        pass


class DeviceLink:
    """See `slowed.Link`; what is under way ends in order. Rows are kept by who waits."""

    def __init__(self, device: torch.device, ns_a_row: float, latency_ns: float) -> None:
        self._stream = torch.cuda.Stream(device)
        self._ns_a_row, self._latency_ns = ns_a_row, latency_ns

    def begin(self, rows: torch.Tensor) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            spin_kernel[(1,)](rows, self._ns_a_row, self._latency_ns, num_warps=1)
            through = torch.cuda.Event()
            through.record()
        return through.wait
