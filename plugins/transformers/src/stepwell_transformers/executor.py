"""What carries step plans out on a device; the runner has one, chosen by the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stepwell import Step, StepPlan, StepResult
from stepwell_kernels import HostPages

if TYPE_CHECKING:
    from stepwell_transformers.twobatch import Overlap


class Flight(Step):
    """A step on its way through an executor."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.result: StepResult | None = None
        self.end: Exception | None = None
        """Why neither this nor any later step ends well."""

    def poll(self) -> StepResult | None:
        """Raises where nothing can be computed any more."""
        if self.end is not None:
            raise self.end
        return self.result


class Executor(ABC):
    """Owns what a device keeps of requests between steps. Called from one thread."""

    overlap: Overlap | None = None
    """What runs steps as two halves, where the config asks for it."""

    @abstractmethod
    def pin(self, hosts: Sequence[HostPages]) -> None:
        """Copy between the pools and these pages from here on, one a group; once."""

    @abstractmethod
    def launch(self, plan: StepPlan) -> Step:
        """Start a step and return at once; steps end in this order."""

    def saved(self) -> Mapping[int, tuple[bool, ...]]:
        """Saves that ended since this was last asked, where steps do not tell of theirs."""
        return {}

    @abstractmethod
    def close(self) -> bool:
        """End what runs and its threads; whether that was done in time."""
