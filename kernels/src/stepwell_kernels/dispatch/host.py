"""Numbers of a device on the host, waited for no longer than is said."""

from __future__ import annotations

import time

import torch

PAUSE_S = 10e-6


def on_host(numbers: torch.Tensor, timeout_s: float) -> torch.Tensor:
    """A copy in host memory. RuntimeError where the device does not come to it in time: it may wait for a lost rank."""
    if numbers.device.type != "cuda":
        return numbers
    copy = torch.empty_like(numbers, device="cpu", pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    there = torch.cuda.Event()
    there.record()
    deadline = time.monotonic() + timeout_s
    while not there.query():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the device waited more than {timeout_s:g} s")
        time.sleep(PAUSE_S)
    return copy
