"""What the device can do at all, measured in the same run: memory, matrix products, and the link to host memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from statistics import median

import torch

SIDE = 8192
MEMORY_BYTES, LINK_BYTES = 4 << 30, 1 << 30
WARM_S = 0.5
CPU_SIDE, CPU_BYTES = 256, 1 << 22


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that shares are shares of."""

    copy_bytes_s: float
    """Of a large copy within device memory; bytes read and bytes written both count."""
    matrix_flops: float
    """Of a large product of square matrices of random numbers."""
    h2d_bytes_s: float
    d2h_bytes_s: float

    def best(self, other: Ceilings | None) -> Ceilings:
        """The higher of two measurements, before and after: a ceiling that was measured low would flatter a share."""
        if other is None:
            return self
        return Ceilings(*(max(pair) for pair in zip(astuple(self), astuple(other), strict=True)))

    def figures(self) -> dict[str, float]:
        """For JSON."""
        return {
            "copy_tb_s": round(self.copy_bytes_s / 1e12, 3),
            "matrix_tflop_s": round(self.matrix_flops / 1e12, 1),
            "h2d_gb_s": round(self.h2d_bytes_s / 1e9, 2),
            "d2h_gb_s": round(self.d2h_bytes_s / 1e9, 2),
        }


def measure(device: torch.device, dtype: torch.dtype, rounds: int = 7) -> Ceilings:
    """All of them, in turn, as medians. Leaves no memory taken, for there may be pools to come."""
    try:
        return _measure(device, dtype, rounds)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(device: torch.device, dtype: torch.dtype, rounds: int) -> Ceilings:
    cuda = device.type == "cuda"
    side, nbytes, link = (SIDE, MEMORY_BYTES, LINK_BYTES) if cuda else (CPU_SIDE, CPU_BYTES, CPU_BYTES)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    pinned = torch.empty(link, dtype=torch.uint8, pin_memory=cuda)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "matrix": lambda: torch.mm(a, b, out=product),
        "d2h": lambda: pinned.copy_(source[:link], non_blocking=True),
        "h2d": lambda: target[:link].copy_(pinned, non_blocking=True),
    }
    warm = time.perf_counter() + (WARM_S if cuda else 0)
    while time.perf_counter() < warm:  # clocks rise with work
        for work in works.values():
            seconds(work, device)
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            took = seconds(work, device)
            if turn:
                times[name].append(took)
    middle = {name: median(took) for name, took in times.items()}
    return Ceilings(
        2 * nbytes / middle["copy"], 2 * side**3 / middle["matrix"], link / middle["h2d"], link / middle["d2h"]
    )


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, by the device's own clock where it has one."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
