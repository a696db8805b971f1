"""Everything a live engine is made of, put together and not yet running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from stepwell.abc.runner import Runner
from stepwell.abc.sink import Event, Sink
from stepwell.abc.storage import Storage
from stepwell.cache.arena import Arena
from stepwell.cache.cache import Cache
from stepwell.cache.elsewhere import Elsewhere
from stepwell.engine.brain import Brain
from stepwell.engine.guard import IoLimits
from stepwell.engine.messages import Hello
from stepwell.errors import PluginError, StepwellError
from stepwell.offers import Capability
from stepwell.types import GroupSpec


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """What can be told of a storage: which offer it is of, and its settings without secrets."""

    use: str
    capabilities: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def lists(self) -> bool:
        """Whether it can say which pages it holds."""
        return Capability.LISTS.value in self.capabilities


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
    arena: Arena | Elsewhere | None
    """The host tier; None: there is none."""
    groups: Sequence[GroupSpec]
    """What its slots hold, each with its shards."""
    storage: Storage | None
    limits: IoLimits
    drain_s: float
    """Seconds that running requests get when the engine stops."""
    sinks: Sequence[Sink] = ()
    on_events: Callable[[Sequence[Event]], None] | None = None
    """Hooks that want events; never called on the serving thread."""
    on_stop: Callable[[str], None] | None = None
    """Hooks that want to know that the engine stops."""
    info: StorageInfo | None = None
    """What `storage` is, or would be."""
    renew: Callable[[], Storage] | None = None
    """Makes the storage that `info` tells of once more, on any thread. None: an engine that cannot have its storage
    does not start."""
    lacking: str = ""
    """Why there is no storage, although `info` tells of one."""
    new_storage: Callable[[Mapping[str, object]], tuple[StorageInfo, Storage]] | None = None
    """Makes a storage of a `[storage]` table, for a running engine; on any thread, and in any time."""
    summary: Sequence[str] = ()
    """What was put together, a line each."""


def open_up(parts: Parts, wake: Callable[[], None]) -> Parts:
    """Have the runner allocate its pools and reach the host's memory, and storage too. Raises PluginError.

    Answers what runs: without the storage where that does not come, and may stay away.
    """
    pools = ", ".join(f"{count} pages of {name}" for name, count in parts.pages.items())
    arena = parts.arena
    with _blamed(f"the runner cannot hold {pools}; lower cache.device_pages or cache.device_gib"):
        parts.runner.open(parts.page_size, parts.pages, parts.slots, wake)
    if arena is not None:
        with _blamed("the runner cannot reach the host tier's memory"):
            parts.runner.pin(arena)
    if arena is None or parts.storage is None:
        return parts
    try:
        attach_storage(parts.storage, arena)
    except BaseException as error:
        if parts.renew is None:
            raise
        _close("storage", parts.storage.close)
        return replace(parts, storage=None, lacking=sentence(error))
    return parts


def attach_storage(storage: Storage, arena: Arena | Elsewhere) -> None:
    """Let a storage reach the host tier's memory. Raises PluginError."""
    with _blamed("storage cannot use the host tier's memory"), arena.lending_name():
        storage.attach(arena)


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    try:
        yield
    except StepwellError:
        raise
    except Exception as error:
        raise PluginError(f"{what} ({type(error).__name__}: {error})") from error


def release(parts: Parts, *, storage: bool = True, arena: bool = True) -> None:
    """Close what the parts hold; what fails in that is logged."""
    closing = [("the runner", parts.runner.close)]
    if storage and parts.storage is not None:
        closing.append(("storage", parts.storage.close))
    if arena and parts.arena is not None:
        closing.append(("the host tier", parts.arena.close))
    for name, close in closing:
        _close(name, close)


def _close(name: str, close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:
        logging.getLogger("stepwell.engine").warning("%s failed to close: %s", name, sentence(error))


def sentence(error: BaseException) -> str:
    """An error for people: what we raise says it all, anything else needs its type."""
    return str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
