"""Where events go: KV pages stored and removed, for external routers and logs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.types import PageKey, Tier


@dataclass(frozen=True, slots=True)
class PagesStored:
    """Pages that became readable in a tier, in path order."""

    tier: Tier
    group: str
    keys: tuple[PageKey, ...]
    parent: PageKey | None
    """Key of the page before the first; None at the start of a prompt."""
    page_tokens: int


@dataclass(frozen=True, slots=True)
class PagesRemoved:
    """Pages that left a tier."""

    tier: Tier
    group: str
    keys: tuple[PageKey, ...]


@dataclass(frozen=True, slots=True)
class TierCleared:
    """Everything left a tier at once."""

    tier: Tier


Event = PagesStored | PagesRemoved | TierCleared


class Sink(ABC):
    """Takes batches of events, in order, on a thread of its own. A raised error is counted; the batch is lost."""

    @abstractmethod
    def take(self, events: Sequence[Event]) -> None:
        """Take a batch. May block; while it does, later events queue up, the oldest are dropped and counted."""

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing
        """The last call."""
