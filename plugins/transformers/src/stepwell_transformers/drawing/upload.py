"""Small arrays to the device, all of a step in one copy that is waited for by nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNED = 16
TYPES = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
}


def send(device: torch.device, array: npt.NDArray[Any]) -> torch.Tensor:
    """As `upload`, for one array: nothing is cut out of what went up, which costs the host as much as the rest."""
    staged = torch.empty(array.shape, dtype=TYPES[array.dtype], pin_memory=device.type == "cuda")
    staged.numpy()[...] = array
    return staged.to(device, non_blocking=True)


def upload(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """Each array as a tensor of its shape on the device, once the current stream gets there.

    The pinned memory comes from torch's own cache, which gives it away again only when this copy is over.
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // ALIGNED) * ALIGNED
    staged = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    view = staged.numpy()
    for start, array in zip(starts, arrays, strict=True):
        view[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(TYPES[array.dtype]).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]
