"""What the server needs of an engine, wherever that runs."""

from __future__ import annotations

from typing import Protocol

from stepwell.engine.client import Client


class Engine(Client, Protocol):
    """A client that also says why it is down."""

    @property
    def restarts(self) -> int:
        """How often the engine was lost so far."""

    @property
    def why_down(self) -> str:
        """Why the engine does not serve, in a sentence; empty while it does."""
