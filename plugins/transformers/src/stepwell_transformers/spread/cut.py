"""Which part of a weight a rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional


class Readable(Protocol):
    """A tensor, or one in a file of which only what is asked for is read."""

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        """Some of it."""


class Taking(Protocol):
    """How a rank comes to its part of a weight."""

    def part(self, whole: Readable, shape: Sequence[int], rank: int, size: int) -> torch.Tensor:
        """What rank `rank` of `size` has of a weight of this shape; a tensor of its own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A weight cut along one dimension, into as many parts as there are ranks."""

    dim: int
    pieces: int = 1
    """Weights that lie behind each other along it, each of which is cut: gate and up in one."""
    padded: bool = False
    """Whether the last ranks' parts are filled up with zeros where it does not come out even."""
    once: bool = False
    """Not cut: the first rank has it, and the others have zeros, since it is summed over ranks."""

    def even(self, shape: Sequence[int], size: int) -> bool:
        """Whether that can be done for so many ranks."""
        return self.padded or self.once or shape[self.dim] % (self.pieces * size) == 0

    def length(self, shape: Sequence[int], size: int) -> int:
        """Of a part along the dimension."""
        return shape[self.dim] if self.once else self.pieces * -(-shape[self.dim] // self.pieces // size)

    def part(self, whole: Readable, shape: Sequence[int], rank: int, size: int) -> torch.Tensor:
        """What rank `rank` of `size` has of a weight of this shape; a tensor of its own."""
        if self.once:
            found = whole[(slice(None),) * len(shape)]
            return found.clone() if rank == 0 else torch.zeros_like(found)
        piece, step = shape[self.dim] // self.pieces, self.length(shape, size) // self.pieces
        parts = [
            whole[
                self._slices(
                    len(shape), number * piece + min(rank * step, piece), number * piece + min((rank + 1) * step, piece)
                )
            ]
            for number in range(self.pieces)
        ]
        found = (
            torch.cat(parts, dim=self.dim) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)
        )
        lacking = self.length(shape, size) - found.shape[self.dim]
        if not lacking:
            return found
        behind = 2 * (len(shape) - 1 - self.dim)
        return functional.pad(found, (0,) * behind + (0, lacking))

    def _slices(self, dims: int, start: int, end: int) -> tuple[slice, ...]:
        return tuple(slice(start, end) if dim == self.dim else slice(None) for dim in range(dims))
