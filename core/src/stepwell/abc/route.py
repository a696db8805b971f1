"""Which replica serves a request."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """What is known of one replica when a request arrives."""

    name: str
    cached_tokens: int
    waiting_tokens: int
    running: int


class RoutePolicy(ABC):
    """Chooses a replica. Pure."""

    @abstractmethod
    def choose(self, replicas: Sequence[Replica], length: int, routing_key: str | None) -> int:
        """Index into `replicas`, which is not empty, for a prompt of `length` tokens."""
