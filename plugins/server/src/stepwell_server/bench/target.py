"""What is put under load, as the clients see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stepwell_server.bench.asks import Ask
from stepwell_server.bench.results import Target as Told
from stepwell_server.bench.samples import Sample


@dataclass(frozen=True, slots=True)
class Manner:
    """How requests are put."""

    temperature: float = 0.0
    ignore_eos: bool = True
    patience: float = 600.0
    """Seconds after which a request counts as failed."""


class Target(Protocol):
    """An engine or a server. Everything on one event loop."""

    @property
    def own_process(self) -> bool:
        """Whether it leaves this process to the client."""

    async def prepare(self, longest: int | None) -> list[str]:
        """Try it out; answers what a reader of the figures should know. ConfigError: it cannot be measured so."""

    async def ask(self, ask: Ask, due: float) -> Sample:
        """Put a request, and wait for its end. Raises nothing; cancelled, it aborts the request."""

    def told(self) -> Told:
        """What it is, for the report."""

    def leave(self) -> None:
        """Hang up, on the event loop."""

    def close(self) -> None:
        """End what is our own of it, once the loop has ended."""
