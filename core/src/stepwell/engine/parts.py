"""Everything a live engine is made of, put together and not yet running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepwell.abc.runner import Runner
from stepwell.abc.sink import Event, Sink
from stepwell.abc.storage import Storage
from stepwell.cache.arena import Arena
from stepwell.cache.cache import Cache
from stepwell.engine.brain import Brain
from stepwell.engine.guard import IoLimits
from stepwell.engine.messages import Hello


@dataclass(frozen=True)
class Parts:
    """Made by `assemble`, run by a Shell."""

    hello: Hello
    brain: Brain
    cache: Cache
    runner: Runner
    page_size: int
    pages: Mapping[str, int]
    """Device pages of each group."""
    slots: int
    """Requests that may run at once."""
    arena: Arena | None
    """The host tier; None: there is none."""
    storage: Storage | None
    limits: IoLimits
    drain_s: float
    """Seconds that running requests get when the engine stops."""
    sinks: Sequence[Sink] = ()
    on_events: Callable[[Sequence[Event]], None] | None = None
    """Hooks that want events; never called on the serving thread."""
    on_stop: Callable[[str], None] | None = None
    """Hooks that want to know that the engine stops."""
    summary: Sequence[str] = ()
    """What was put together, a line each."""
