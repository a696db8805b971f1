"""Which replica serves a request."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """What is known of one replica when a request arrives."""

    name: str
    """Stays the same for as long as the replica lives; another one has another name."""
    cached_tokens: int
    """Of the request's prompt, on device and host as far as the replica's events have come, or being computed there
    for a request that it was sent and that begins alike."""
    waiting_tokens: int
    """Prompt tokens that it was sent and has not begun to answer, without what is cached there."""
    running: int
    """Requests that it was sent and has not finished."""
    stored_tokens: int = 0
    """Of the request's prompt in storage that this replica reaches."""
    sent: int = 0
    """Requests that it was sent so far; one that came later begins with the least of the others."""


class RoutePolicy(ABC):
    """Chooses a replica. Pure: the same question gets the same answer, whichever process asks."""

    @abstractmethod
    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        """Index into `replicas`, which is not empty, for a prompt of `length` tokens.

        Only replicas that serve are among them. An error, or an index that is none, is a counted fault; the replica
        with the fewest requests is taken then.
        """
