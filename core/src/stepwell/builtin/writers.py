"""The write policies: at once, once it has proved useful, or only when it has to leave."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.abc.write import Cause, Decision, Edge, WritePolicy
from stepwell.offers import Context, NoConfig
from stepwell.settings import at_least


class WriteThrough(WritePolicy):
    """Copies everything down as soon as it is there."""

    def __init__(self, config: NoConfig | None = None, context: Context | None = None) -> None:
        pass

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NOW


@dataclass(frozen=True, slots=True)
class SelectiveConfig:
    """The `[write]` table when `use = "write_through_selective"`."""

    threshold: int = 2
    """Requests that must have used pages before they are copied down, the one that made them included."""

    def __post_init__(self) -> None:
        at_least("threshold", self.threshold, 1)


class WriteThroughSelective(WritePolicy):
    """Copies down what was used often enough, and drops the rest."""

    def __init__(self, config: SelectiveConfig | None = None, context: Context | None = None) -> None:
        self._threshold = (config or SelectiveConfig()).threshold

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        if uses >= self._threshold:
            return Decision.NOW
        return Decision.NEVER if cause is Cause.EVICT else Decision.LATER


@dataclass(frozen=True, slots=True)
class WriteBackConfig:
    """The `[write]` table when `use = "write_back"`."""

    reserve: float = 0.1
    """Share of a tier that is kept clean ahead of need, 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.reserve <= 1:
            raise ValueError(f"reserve: {self.reserve} is not between 0 and 1")


class WriteBack(WritePolicy):
    """Copies down only what is about to leave, a reserve ahead of need."""

    def __init__(self, config: WriteBackConfig | None = None, context: Context | None = None) -> None:
        self.reserve = (config or WriteBackConfig()).reserve

    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        return Decision.NOW if cause is Cause.EVICT else Decision.LATER
