"""What is copied down a tier, and when."""

from abc import ABC, abstractmethod
from enum import Enum


class Edge(Enum):
    """A step down."""

    SAVE = "save"
    """Device to host."""
    STORE = "store"
    """Host to storage."""


class Cause(Enum):
    """What happened to the pages in question."""

    INSERT = "insert"
    """They were computed (SAVE) or saved (STORE) just now."""
    HIT = "hit"
    """A further request used them."""
    EVICT = "evict"
    """They are about to leave the upper tier."""


class Decision(Enum):
    """What to do about it."""

    NOW = "now"
    LATER = "later"
    """Not now; ask again at the next cause."""
    NEVER = "never"
    """Not now, and drop them when they leave the upper tier."""


class WritePolicy(ABC):
    """Decides for runs of pages whether they are copied down. Pure, called on the serving thread."""

    reserve: float = 0.0
    """Share of the upper tier that core keeps clean (saved and free to take) ahead of need, 0 to 1."""

    @abstractmethod
    def decide(self, edge: Edge, cause: Cause, uses: int) -> Decision:
        """Decide for pages that `uses` different requests have used so far, the one that made them included."""
