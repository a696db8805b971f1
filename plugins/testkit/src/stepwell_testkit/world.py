"""Where dispatchers run for the kit, and how arrays become the tensors they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepwell import Dispatcher
from stepwell_testkit.together import at_once

R = TypeVar("R")
Array = npt.NDArray[Any]


class Adapter(Protocol):
    """Arrays to a backend's tensors and back. Has to be picklable where the world has processes."""

    def give(self, array: Array, dtype: str) -> Any:
        """A tensor with these values on the rank's device, of `float32`, `bfloat16` or `int64`."""

    def take(self, tensor: Any) -> Array:
        """The values of a tensor, integers and float32 as they are, other floats as float32."""


class NumpyAdapter:
    """For dispatchers that take numpy arrays."""

    def give(self, array: Array, dtype: str) -> Array:
        return array.astype(dtype)

    def take(self, tensor: Array) -> Array:
        return np.asarray(tensor).copy()


class TorchAdapter:
    """For dispatchers that take torch tensors; each rank makes them on `device`, or on its current one."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def give(self, array: Array, dtype: str) -> Any:
        torch = import_module("torch")  # where the kit is used without, it need not be installed
        return torch.tensor(array, dtype=getattr(torch, dtype), device=self._device)

    def take(self, tensor: Any) -> Array:
        whole = tensor.float() if tensor.is_floating_point() else tensor
        return np.asarray(whole.detach().cpu().numpy()).copy()


class World(Protocol):
    """A group of ranks with a dispatcher each."""

    @property
    def ranks(self) -> int:
        """How many."""

    def run(self, work: Callable[[Dispatcher[Any], int], R]) -> Sequence[R]:
        """`work(dispatcher, rank)` on every rank at once; what each returned. Raises where one does not come back."""


@runtime_checkable
class Mortal(Protocol):
    """A world whose ranks can be lost; `run` then does without them."""

    def kill(self, rank: int) -> None:
        """End a rank without any warning."""


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, dispatchers: Sequence[Dispatcher[Any]], limit_s: float) -> None:
        self._dispatchers = dispatchers
        self._limit_s = limit_s

    @property
    def ranks(self) -> int:
        return len(self._dispatchers)

    def run(self, work: Callable[[Dispatcher[Any], int], R]) -> list[R]:
        return at_once(lambda rank: work(self._dispatchers[rank], rank), self.ranks, self._limit_s)
