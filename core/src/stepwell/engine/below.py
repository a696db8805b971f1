"""What the brain is told of the tier below host: what storage did, and that there is another storage, or none."""

from __future__ import annotations

from stepwell.cache.cache import Cache
from stepwell.engine.actions import (
    Attached,
    Cleared,
    Detached,
    Event,
    FetchEnded,
    FetchMoved,
    Queried,
    StoreEnded,
)
from stepwell.engine.fetches import Fetches
from stepwell.engine.stores import Stores


class Below:
    """Stores and fetches of one brain, and the switch for both."""

    def __init__(self, cache: Cache, stores: Stores, fetches: Fetches | None) -> None:
        self._cache, self._stores, self._fetches = cache, stores, fetches

    @property
    def open(self) -> int:
        """What storage was asked and has not answered yet."""
        return self._stores.open + (self._fetches.open if self._fetches else 0)

    def take(self, event: Event, now: float) -> bool:
        """Take what happened. True where a request may be able to run because of that."""
        fetches = self._fetches
        match event:
            case StoreEnded():
                self._stores.ended(event)
            case Queried() if fetches:
                return fetches.queried(event)
            case FetchMoved() if fetches:
                return fetches.moved(event)
            case FetchEnded() if fetches:
                return fetches.ended(event)
            case Attached():
                self._cache.attach_storage()
            case Cleared():
                self._cache.forget_stored()
            case Detached():
                self._cache.detach_storage()
                self._stores.detach()
                if fetches:
                    fetches.detach(now)
                return True
        return False
