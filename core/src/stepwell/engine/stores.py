"""Stores on their way to storage: within a bound, each ended once, those of a storage that is gone counted apart."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.cache.cache import Cache, StoreOp
from stepwell.engine.actions import Action, Store, StoreEnded
from stepwell.engine.stats import Counters
from stepwell.types import Done


class Stores:
    """All stores of one brain. `most`: pages that may be on their way; `emit` takes the actions."""

    def __init__(
        self, cache: Cache, most: int, page_bytes: tuple[int, ...], counters: Counters, emit: Callable[[Action], None]
    ) -> None:
        self._cache = cache
        self._most = most
        self._page_bytes = page_bytes
        self._counters = counters
        self._emit = emit
        self._moving: dict[int, StoreOp] = {}
        self._former: dict[int, StoreOp] = {}
        self.pages = 0
        """Pages on their way."""

    @property
    def open(self) -> int:
        """Stores that storage has not answered yet."""
        return len(self._moving)

    @property
    def behind(self) -> bool:
        """Whether there is more to send on now, though nothing happens."""
        return self._cache.catching_up and self.pages < self._most

    def start(self) -> None:
        """Send on what the write policy wants in storage."""
        left = self._most - self.pages
        for op in self._cache.stores(left) if left > 0 else ():
            self._moving[op.id] = op
            self.pages += len(op.keys)
            self._emit(Store(op))

    def ended(self, event: StoreEnded) -> None:
        """A store ended; its pages can be evicted again."""
        op = self._moving.pop(event.id, None)
        if op is not None:
            self.pages -= len(op.keys)
        else:
            op = self._former.pop(event.id, None)
        if op is None:
            return
        good = sum(isinstance(result, Done) for result in event.results)
        self._counters.bytes_stored += good * self._page_bytes[op.group]
        self._cache.stored(op, event.results)

    def detach(self) -> None:
        """Storage is gone: what hangs in it keeps its pages, and nothing else waits for it."""
        self._former |= self._moving
        self._moving = {}
        self.pages = 0
