"""Streams, and marks in them, as the executor sees them; tests put others in their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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
    def mark(self, anew: Mark | None = None) -> Mark:
        """The end of what is in it now; `anew`: a mark of before, which from here on means this place."""

    @abstractmethod
    def follow(self, mark: Mark) -> None:
        """What comes from here on waits for a mark in another lane."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Those of an executor."""

    compute: Lane
    loads: Lane
    saves: Lane
    gates: Mapping[int, Mark] = field(default_factory=dict)
    """By layer, the mark that each load into it sets anew, where graphs wait for it."""


class CudaLane(Lane):
    """A stream. Marks put the thread that waits for them to sleep."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]

    def enqueue(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def mark(self, anew: Mark | None = None) -> torch.cuda.Event:
        event = anew or torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        assert isinstance(event, torch.cuda.Event)
        event.record(self.stream)
        return event

    def gate(self) -> torch.cuda.Event:
        """A mark that captured graphs wait for as it is when they are launched, wherever it lies by then."""
        return self.mark(torch.cuda.Event(external=True))  # type: ignore[no-untyped-call]

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        self.stream.wait_event(mark)
