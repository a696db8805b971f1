"""Memory of batches on the host, used again: what is new to a process takes longer to touch than to fill."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

KEPT = 8
"""Buffers that nobody uses, at most: what two batches under way hold, and more."""


@dataclass(slots=True)
class Buffers:
    """Those of one dispatcher. A device's memory is torch's to keep, which knows its streams."""

    _spare: list[torch.Tensor] = field(default_factory=list)

    def take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """So many bytes, of any content."""
        if device.type != "cpu":
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        for at, one in enumerate(self._spare):
            if len(one) >= nbytes:
                return self._spare.pop(at)[:nbytes]
        with torch.inference_mode(False):  # so that it can be written to in any mode
            return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """What `take` gave, and nobody reads any more."""
        if buffer.device.type == "cpu":
            whole = buffer if buffer._base is None else buffer._base
            self._spare = sorted([*self._spare, whole], key=len)[-KEPT:]
