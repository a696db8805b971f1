"""Where a rank's kernels run: in the caller's stream, or beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Launchable(Protocol):
    """A Triton kernel."""

    def __getitem__(self, grid: tuple[int]) -> Launch: ...


class Launch(Protocol):
    """A kernel with its grid."""

    def __call__(self, *args: torch.Tensor | int, **meta: int | bool) -> object: ...


class Mark(Protocol):
    """A point in a stream, once it was recorded there."""

    def record(self) -> None: ...

    def wait(self) -> None: ...

    def synchronize(self) -> None: ...


class Lane(Protocol):
    """What a dispatcher needs of its device."""

    device: torch.device
    timed: bool
    """Whether kernels can read a clock; else they count rounds."""

    def run(self, kernel: Launchable, programs: int, *args: torch.Tensor | int, warps: int, **meta: int | bool) -> None:
        """Queue a kernel."""

    def aside(self) -> AbstractContextManager[None]:
        """What is queued inside runs beside the caller's stream, after all that is there now."""

    def mark(self) -> Mark:
        """One that was not recorded yet."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeros in host memory that kernels reach, too."""

    def quiet(self, lost: torch.Tensor) -> None:
        """Return when no kernel of this lane runs any more. Setting `lost` ends those that wait."""


class CudaLane:
    """Streams of a CUDA device."""

    timed = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._aside, self._last = (torch.cuda.Stream(device) for _ in range(2))

    def run(self, kernel: Launchable, programs: int, *args: torch.Tensor | int, warps: int, **meta: int | bool) -> None:
        kernel[(programs,)](*args, num_warps=warps, **meta)

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._aside):
            yield

    def mark(self) -> torch.cuda.Event:
        return torch.cuda.Event()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def quiet(self, lost: torch.Tensor) -> None:
        with torch.cuda.stream(self._last):  # the others may be held up by what this ends
            lost[:1].fill_(1)
        torch.cuda.synchronize(self.device)
