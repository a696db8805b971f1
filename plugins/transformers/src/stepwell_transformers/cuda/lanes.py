"""Streams, and marks in them, as the executor sees them; tests put others in their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch


class Mark(Protocol):
    """A place in a lane."""

    def synchronize(self) -> None:
        """Wait until the work before it has ended; raises RuntimeError where that failed."""


class Lane(ABC):
    """Work in order, beside that of other lanes."""

    @abstractmethod
    def enqueue(self) -> AbstractContextManager[object]:
        """What is started within goes into this lane."""

    @abstractmethod
    def mark(self) -> Mark:
        """The end of what is in it now."""

    @abstractmethod
    def follow(self, mark: Mark) -> None:
        """What comes from here on waits for a mark in another lane."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Those of an executor."""

    compute: Lane
    loads: Lane
    saves: Lane


class CudaLane(Lane):
    """A stream. Marks put the thread that waits for them to sleep."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]

    def enqueue(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        self.stream.wait_event(mark)


def copy_lanes(device: torch.device) -> tuple[CudaLane, CudaLane]:
    """For loads and saves. They go before a step where both could start: they are small, and it may wait."""
    return CudaLane(device, -1), CudaLane(device, -1)
