"""When pages are fetched from storage for a waiting request, and how long it waits for them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch has come."""

    waited_s: float
    """Seconds since the request was first able to run but for this fetch."""
    done_pages: int
    wanted_pages: int
    """-1 while storage has not yet said what it holds."""
    page_tokens: int


class PrefetchPolicy(ABC):
    """Starts and stops fetches. Pure, called on the serving thread."""

    max_pages: int = 4096
    """Pages that may be in flight over all requests."""

    @abstractmethod
    def start(self, missing_tokens: int) -> bool:
        """Whether it is worth asking storage for `missing_tokens` tokens that no upper tier holds."""

    @abstractmethod
    def stop(self, progress: FetchProgress) -> bool:
        """Whether the request should run now with the pages that are there, giving up the rest."""
